"""The commands that are disturbed, how they run, and how their results are compared."""

import contextlib
import errno
import hashlib
import io
import json
import os
import shutil
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import gelato
from gelato.cli import main
from gelato.errors import InputError
from gelato.progress import note
from gelato.runs import loop, signals
from gelato.runs.folder import open_run
from gelato.runs.npz import read_arrays

_SAC = ("sac.hidden=(8,)", "sac.epoch=5", "sac.branches=4", "sac.horizon=2", "sac.replay=16")
_LATENT = ("hidden=(8,)", "forward_hidden=(8,)", "decoders=2", "batch_size=16", "updates=20")
_TINY_MODEL = tuple(f"latent.model.{setting}" for setting in (*_LATENT, "variance_updates=10"))
_ENSEMBLE = ("elites=2", "members=3", "hidden=(8,)", "updates=20", "batch_size=8")
_TINY_ENSEMBLE = tuple(f"ensemble.ensemble.{setting}" for setting in _ENSEMBLE)
_PPO = ("hidden=(8,)", "episodes=4", "steps=5", "passes=1", "minibatches=1")
_NEAR = ("settings.neighbours=3", "settings.points=100")
ROOMS, ROADS = "four-rooms-hole,transitions=300", "roundabout,episodes=2"
# Names of files whose content depends on time, or that only guard others.
_IGNORED = (".lock", "manifest.json")


@dataclass(frozen=True)
class Case:
    """A command line with `{root}` for the folder that it may write to."""

    name: str
    arguments: tuple[str, ...]
    compiles: bool = True

    def fill(self, root: Path) -> list[str]:
        """Return the arguments for one folder."""
        return [argument.replace("{root}", str(root)) for argument in self.arguments]


def _train(name: str, data: str, method: str, *settings: str, updates: int = 20) -> Case:
    short = ("--updates", str(updates), "--evaluations", "2", "--episodes", "1")
    # One policy, so that no selection follows.
    weight = () if method == "bc" else ("--penalty-weight", "1")
    if any(setting.startswith("sac") for setting in settings):
        weight += ("--real-fraction", "0.5")
    run = ("--run", "{root}/run")
    return Case(
        name, ("train", data, "--method", method, *run, *short, *weight, "--set", *settings)
    )


# The training loop with its run folder, but with a block of NumPy: a trial takes a moment.
LOOP = "training loop"

CASES = {
    case.name: case
    for case in (
        Case(LOOP, ()),
        Case("data make", ("data", "make", "four-rooms", "--transitions", "60"), compiles=False),
        Case(
            "data import",
            ("data", "import", "file:{root}/../fixed/log.npz", "--name", "mine/log"),
            compiles=False,
        ),
        Case(
            "export",
            ("export", "{root}/../fixed/bc", "--onnx", "{root}/policy.onnx"),
            compiles=False,
        ),
        Case(
            "model fit",
            (
                *("model", "fit", ROOMS, "--run", "{root}/run", "--updates", "300"),
                *("--variance-updates", "200", "--batch-size", "16"),
            ),
        ),
        _train("train bc", ROOMS, "bc", "cloning.hidden=(8,)", "cloning.epoch=5"),
        _train("train gelato", ROOMS, "gelato", *_SAC, "sac.batch_size=8", *_TINY_MODEL, *_NEAR),
        _train("train mopo", ROOMS, "mopo", *_SAC, "sac.batch_size=8", *_TINY_ENSEMBLE, *_NEAR),
        _train(
            "train gelato (PPO)",
            ROADS,
            "gelato",
            *(f"ppo.{setting}" for setting in _PPO),
            *_TINY_MODEL,
            *_NEAR,
            updates=80,
        ),
    )
}


@dataclass(frozen=True)
class Outcome:
    """How a command ended: its exit code, what it printed, and a traceback if it had one."""

    code: int
    output: str
    traceback: str = ""


def prepare_process() -> None:
    """Make checkpoints frequent and use no worker processes, so that a trial is cheap."""
    loop.CHECKPOINT_SECONDS = 0.0
    os.cpu_count = lambda: 1


def run_command(arguments: list[str]) -> Outcome:
    """Run a command line in this process."""
    return _capture(lambda: main(arguments))


def _capture(action: Callable[[], None]) -> Outcome:
    text = io.StringIO()
    signals._asked = None  # A new process has no signal that waits.
    with contextlib.redirect_stdout(text), contextlib.redirect_stderr(text):
        try:
            action()
        except SystemExit as end:
            return Outcome(int(end.code or 0), text.getvalue())
        except InputError as error:
            return Outcome(2, text.getvalue() + str(error))
        except OSError as error:
            full = error.errno in (errno.ENOSPC, errno.EFBIG)
            return Outcome(2, f"{text.getvalue()}{'the disk is full' if full else error}")
        except KeyboardInterrupt:
            return Outcome(signals.exit_code(), text.getvalue())
        except BaseException:  # Whatever escapes the command line is a traceback for its user.
            return Outcome(1, text.getvalue(), traceback.format_exc())
    return Outcome(0, text.getvalue())


@contextlib.contextmanager
def use_store(path: Path) -> Iterator[None]:
    """Use another Minari store for a moment."""
    before = os.environ["MINARI_DATASETS_PATH"]
    os.environ["MINARI_DATASETS_PATH"] = str(path)
    try:
        yield
    finally:
        os.environ["MINARI_DATASETS_PATH"] = before


def run_case(case: Case, root: Path) -> Outcome:
    """Run a case in a folder; the cases that make datasets have their store in it."""
    if not root.exists():
        root.mkdir(parents=True)
    if case.name == LOOP:
        return _capture(lambda: train_without_compiling(root / "run"))
    if case.name.startswith("data"):
        with use_store(root / "store"):
            return run_command(case.fill(root))
    return run_command(case.fill(root))


def train_without_compiling(folder: Path) -> None:
    """Train with the real loop and run folder; a block adds noise that depends on the step."""
    signals.remember_interrupts()

    def block(state: dict[str, Any], updates: int) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        noise = np.random.default_rng([7, int(state["step"])]).standard_normal(4)
        weights = state["weights"] + noise.astype(np.float32)
        step = np.asarray(state["step"] + updates, np.int32)
        return {"weights": weights, "step": step}, {"loss": np.abs(weights[:1])}

    with open_run(folder, "agents", methods=["loop"], seeds=[0]) as run:
        if (folder / "results.json").exists() and run.has("last"):
            run.remove_checkpoints()
            return
        note("resuming from the last checkpoint" if run.resumed else "expect about a minute")
        scale = run.record("calibration", {"unit": 1.25})["unit"]
        start = {"weights": np.zeros(4, np.float32), "step": np.zeros((), np.int32)}
        state = loop.run_blocks(
            run, start, block, labels=[{"seed": 0}], total=12, length=2, title="loop"
        )
        weights = np.asarray(state["weights"]) * scale

        def keep() -> None:
            run.save("last", {"weights": weights})
            run.write_records([{"method": "loop", "seed": 0, "return": float(weights.sum())}])

        loop.finish(run, keep)


def describe(root: Path) -> dict[str, object]:
    """Return what a folder holds, without times and speeds, to compare two folders."""
    found: dict[str, object] = {}
    for path in sorted(root.rglob("*")):
        name = str(path.relative_to(root))
        if path.is_dir():
            if not path.name.startswith("checkpoints"):
                found[name] = "folder"
        elif path.name not in _IGNORED:
            found[name] = _content(path)
    return found


def _content(path: Path) -> object:
    if path.suffix == ".npz":
        arrays, _ = attempt(lambda: read_arrays(path))
        if arrays is not None:
            kept = [name for name in sorted(arrays) if name not in ("stamp", "digest")]
            return [(name, _hash(arrays[name].tobytes())) for name in kept]
    if path.name == "metrics.csv":
        lines = [line.split(",") for line in path.read_text().splitlines()]
        rate = lines[0].index("updates_per_second") if lines else 0
        return [cells[:rate] + cells[rate + 1 :] for cells in lines]
    if path.name == "run.json":
        return {k: v for k, v in json.loads(path.read_text()).items() if k != "versions"}
    return _hash(path.read_bytes())


def _hash(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=12).hexdigest()


def compare(found: dict[str, object], expected: dict[str, object]) -> str:
    """Say in which files two folders differ, or nothing."""
    names = sorted(found.keys() | expected.keys())
    different = [name for name in names if found.get(name) != expected.get(name)]
    return ", ".join(different[:5])


def attempt(action: Callable[[], Any]) -> tuple[Any, str]:
    """Call a function; return its value, and the line of an `InputError` or a traceback."""
    try:
        return action(), ""
    except InputError as error:
        return None, str(error)
    except OSError as error:  # The command line prints these in one line too.
        return None, f"{error.filename}: {error.strerror}"
    except MemoryError:
        return None, "not enough memory"
    except Exception:
        return None, traceback.format_exc()


def make_fixed(work: Path, *, train: bool) -> None:
    """Make what the cases read: a log, and for trainings and exports datasets and a policy."""
    fixed = work / "fixed"
    if (fixed / "done").exists() or (not train and (fixed / "log.npz").exists()):
        return
    shutil.rmtree(fixed, ignore_errors=True)
    fixed.mkdir(parents=True)
    rng = np.random.default_rng(0)
    rows = 200
    np.savez(
        fixed / "log.npz",
        observations=rng.standard_normal((rows, 3)),
        actions=rng.uniform(-1, 1, (rows, 2)),
        rewards=rng.standard_normal(rows),
        timeouts=np.arange(rows) % 10 == 9,
    )
    if not train:
        return
    for reference in (ROOMS, ROADS):
        gelato.load(reference)
    outcome = run_command([*CASES["train bc"].fill(fixed)])
    assert outcome.code == 0, outcome
    (fixed / "run").rename(fixed / "bc")
    (fixed / "done").touch()
