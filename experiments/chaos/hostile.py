"""Files and folders that someone wrote to harm: none runs code, costs much, or reaches others."""

import json
import os
import pickle
import resource
import time
import traceback
import zipfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import h5py
import hypothesis
import numpy as np
from hypothesis import strategies

import gelato
from experiments.chaos import commands
from experiments.chaos.commands import attempt, use_store
from gelato.model.training import load_model
from gelato.runs.folder import open_run

_FIELDS = ("observations", "actions", "rewards", "terminals", "timeouts", "next_observations")
_DTYPES = ("f8", "f4", "f2", "i8", "u1", "?", "c8", "S3", "U2", "M8[s]", "V5", "O", ">f4", "i4")
# A file of kilobytes may not cost more than this, in seconds of computing.
_SECONDS, _MEGABYTES = 20.0, 400
KINDS = ("npz", "hdf5", "minari", "run folder")


class _Payload:
    """A pickle that leaves a proof when someone loads it."""

    def __init__(self, proof: Path) -> None:
        self.proof = proof

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.proof),)


def attack(kind: str, rng: Any, folder: Path) -> str:
    """Write one hostile file, read it, and say what harm it did, or nothing.

    `rng` is a generator of random numbers, or Hypothesis in its place.
    """
    os.environ["MINARI_DATASETS_PATH"] = str(folder / "store")
    proof, victim = folder / "proof", folder / "victim"
    victim.write_text("precious")
    work = folder / "files"
    work.mkdir()
    read = {
        "npz": _write_npz,
        "hdf5": _write_hdf5,
        "minari": _write_minari,
        "run folder": _write_run,
    }[kind](work, proof, victim, rng)
    begun, before = time.process_time(), _peak()
    _, problem = attempt(read)
    seconds, cost = time.process_time() - begun, _peak() - before
    if "Traceback" in problem:
        return problem
    if "\n" in problem:
        return f"more than one line: {problem}"
    if proof.exists():
        return "ran code"
    if victim.read_text() != "precious":
        return "changed a file outside"
    if seconds > _SECONDS or cost > _MEGABYTES:
        return f"cost {seconds:.0f} s and {cost:.0f} MB"
    return ""


def attack_many(kind: str, seeds: list[tuple[int, int]], folder: Path) -> list[str]:
    """Attack with several files, each in a folder of its own."""
    commands.prepare_process()
    found = []
    for seed in seeds:
        place = folder / f"{seed[1]}"
        place.mkdir(parents=True)
        found.append(attack(kind, np.random.default_rng(seed), place))
    return found


class Drawn:
    """Draws what the writers of hostile files draw, from Hypothesis: it tries edges first, and
    reduces what does harm to its smallest form.
    """

    def __init__(self, draw: Callable[[Any], Any]) -> None:
        self._draw = draw

    def integers(self, low: int, high: int | None = None, size: int | None = None) -> Any:
        """Return an integer below `high`, or an array of them."""
        least, most = (0, low) if high is None else (low, high)
        numbers = strategies.integers(least, most - 1)
        if size is None:
            return self._draw(numbers)
        return np.array([self._draw(numbers) for _ in range(size)], int)

    def random(self) -> float:
        """Return a number from 0 to 1. Its smallest value leaves the file as it is."""
        return 1 - self._draw(strategies.integers(0, 100)) / 100

    def choice(self, values: Any, size: Any = None) -> Any:
        """Return one of some values, or an array of them."""
        if size is None:
            return self._draw(strategies.sampled_from(values))
        count = int(np.prod(size))
        return np.array([self.choice(values) for _ in range(count)]).reshape(size)


def search(kind: str, seed: int, examples: int, folder: Path) -> tuple[int, str]:
    """Let Hypothesis make hostile files; return how many it made, and the first harm."""
    commands.prepare_process()
    made = 0

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=examples,
        deadline=None,
        database=None,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(strategies.data())
    def check(data: Any) -> None:
        nonlocal made
        made += 1
        place = folder / f"{made:06d}"  # Its length is part of pickles.
        place.mkdir(parents=True)
        fault = attack(kind, Drawn(data.draw), place)
        assert not fault, fault

    try:
        check()
    except Exception as error:  # An assertion, or several of them in a group.
        return made, "".join(traceback.format_exception(error))
    return made, ""


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


def _shape(rng: Any) -> tuple[int, ...]:
    rows = int(rng.choice([0, 1, 4, 4, 4, 7]))
    return (rows, *rng.integers(0, 4, int(rng.integers(0, 3))).tolist())


def _array(rng: Any, proof: Path) -> np.ndarray:
    dtype = _DTYPES[int(rng.integers(len(_DTYPES)))]
    shape = _shape(rng)
    if dtype == "O":
        array = np.empty(shape, object)
        array.fill(_Payload(proof))
        return array
    values = rng.choice([0.0, 1.0, 0.5, -1.0, 1e30], size=shape)
    with np.errstate(all="ignore"):
        array = values.astype(dtype) if dtype[0] not in "VM" else np.zeros(shape, dtype)
    if array.dtype.kind == "f" and array.size and rng.random() < 0.2:
        array.flat[0] = rng.choice([np.nan, np.inf])
    return array


def _header(rng: Any) -> bytes:
    """Return the header of an array with an odd or impossible description."""
    shape = [(10**15,), (-4, 2), (2**63,), (4, 10**9, 10**9), ("a",), 4][int(rng.integers(6))]
    descr = ["<f8", "|O", "<f99", "f4,f4", [("a", "<f8")], "<U1000000000"][int(rng.integers(6))]
    text = repr({"descr": descr, "fortran_order": False, "shape": shape})
    if rng.random() < 0.2:
        text = "[" * int(rng.integers(1, 5000))
    if rng.random() < 0.1:
        text = "__import__('os').mkdir('proof')"
    body = text.encode().ljust(118) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(body).to_bytes(2, "little") + body


def _write_npz(work: Path, proof: Path, victim: Path, rng: Any) -> Any:
    del victim
    path = work / "log.npz"
    with zipfile.ZipFile(path, "w", [0, 8, 12, 14][int(rng.integers(4))]) as archive:
        for field in _FIELDS[: int(rng.integers(2, 7))]:
            if rng.random() < 0.15:
                archive.writestr(f"{field}.npy", _header(rng) + bytes(int(rng.integers(64))))
            elif rng.random() < 0.1:
                archive.writestr(f"{field}.npy", pickle.dumps(_Payload(proof)))
            elif rng.random() < 0.1:
                archive.writestr(f"../{field}.npy", b"above")
            else:
                text = BytesIO()
                np.save(text, _array(rng, proof), allow_pickle=True)
                archive.writestr(f"{field}.npy", text.getvalue())
    content = bytearray(path.read_bytes())
    for _ in range(int(rng.integers(0, 4))):
        content[int(rng.integers(len(content)))] = int(rng.integers(256))
    path.write_bytes(content)
    return lambda: gelato.load(f"file:{path}")


def _write_hdf5(work: Path, proof: Path, victim: Path, rng: Any) -> Any:
    path = work / "log.hdf5"
    with h5py.File(path, "w", libver=("earliest", "latest")[int(rng.integers(2))]) as file:
        for field in _FIELDS[: int(rng.integers(3, 7))]:
            _add_hdf5(file, field, victim, proof, rng)
        if rng.random() < 0.1:
            file["loop"] = h5py.SoftLink("/loop")
            file["self"] = file["/"]
    content = bytearray(path.read_bytes())
    for _ in range(int(rng.integers(0, 3))):
        content[int(rng.integers(len(content)))] = int(rng.integers(256))
    path.write_bytes(content)
    source = ("file", "d4rl")[int(rng.integers(2))]
    return lambda: gelato.load(f"{source}:{path}")


def _add_hdf5(file: Any, field: str, victim: Path, proof: Path, rng: Any) -> None:
    how = int(rng.integers(10))
    rows = 4
    if how == 0:
        file.create_dataset(field, (rows, 2), "u1", external=[(str(victim), 0, 8)])
    elif how == 1:
        layout = h5py.VirtualLayout((rows,), "f8")
        layout[:] = h5py.VirtualSource(str(victim), "x", (rows,))
        file.create_virtual_dataset(field, layout)
    elif how == 2:
        file[field] = h5py.ExternalLink(str(victim), "x")
    elif how == 3:
        file.create_dataset(field, (10 ** int(rng.integers(3, 13)),), "f4", chunks=(1000,))
    elif how == 4:
        file.create_dataset(field, (rows,), h5py.string_dtype())
    elif how == 5:
        file.create_dataset(field, (rows,), h5py.ref_dtype)
    elif how == 6:
        file.create_group(field)
    else:
        array = _array(rng, proof)
        if array.dtype.kind not in "OUMV":
            file[field] = array


def _write_minari(work: Path, proof: Path, victim: Path, rng: Any) -> Any:
    log = work / "log.npz"
    ends = np.tile([0, 0, 1], 4)
    arrays = {"observations": np.ones((12, 2)), "actions": np.zeros((12, 1)), "timeouts": ends}
    np.savez(log, **arrays, rewards=np.arange(12.0))
    with use_store(work / "store"):
        commands.run_command(["data", "import", f"file:{log}", "--name", "mine/log"])
    data = work / "store" / "mine" / "log-v0" / "data"
    path = data / "metadata.json"
    metadata = json.loads(path.read_text())
    hostile = {"id": "X-v0", "entry_point": "os:mkdir", "kwargs": {"path": str(proof)}}
    values: list[Any] = [
        *(None, -1, 10**18, 1e99, "x" * 1000, [], {}, [[[]]], json.dumps(hostile), "../../victim"),
        json.dumps({"type": "Box", "dtype": "float32", "shape": [10**9], "low": 0, "high": 1}),
        json.dumps({"type": "Discrete", "n": 10**9, "start": 0}),
        json.dumps({"type": "Text", "max_length": 3, "min_length": 1, "charset": "abc"}),
        json.dumps({"type": "Dict", "subspaces": {"a": {"type": "Nothing"}}}),
        "[" * 5000,
    ]
    for _ in range(int(rng.integers(1, 4))):
        key = [*metadata, "env_spec", "eval_env_spec", "observation_space", "action_space"]
        name = key[int(rng.integers(len(key)))]
        if rng.random() < 0.3:
            metadata.pop(name, None)
        else:
            metadata[name] = values[int(rng.integers(len(values)))]
    path.write_text(json.dumps(metadata))
    if rng.random() < 0.5:
        with h5py.File(data / "main_data.hdf5", "a") as file:
            group = file[f"episode_{int(rng.integers(4))}"]
            field = ("observations", "actions", "rewards")[int(rng.integers(3))]
            del group[field]
            _add_hdf5(group, field, victim, proof, rng)

    def read() -> None:
        with use_store(work / "store"):
            gelato.load("minari:mine/log-v0")

    return read


def _write_run(work: Path, proof: Path, victim: Path, rng: Any) -> Any:
    folder = work / "run"
    with open_run(folder, "model", data={"reference": "file:x.npz", "environment": None}) as run:
        run.log([{"step": 1, "seed": 0, "loss": "1"}])
        run.save("model", {"weights": np.ones(3)})
        run.write_json("calibration", {"bc": {"level": 0, "unit": 1}})
        (folder / "checkpoints").mkdir()
    names = [path.name for path in sorted(folder.iterdir())]
    name = names[int(rng.integers(len(names)))]
    path = folder / name
    how = int(rng.integers(6))
    if path.is_dir():
        path.rmdir()
    else:
        path.unlink()
    if how == 0:
        path.symlink_to(victim)
    elif how == 1:
        os.link(victim, path)
    elif how == 2:
        os.mkfifo(path)
    elif how == 3:
        path.mkdir()
    elif how == 4:
        np.savez(work / "x.npz", weights=np.array([_Payload(proof)], object))
        path.write_bytes((work / "x.npz").read_bytes())
    else:
        path.write_text(["[" * 10_000, "{}", '{"format": 1e999}', "\0", ""][int(rng.integers(5))])

    def read() -> None:
        for action in (
            lambda: load_model(folder),
            lambda: run.load("model", {"weights": np.ones(3)}),
            lambda: run.read_json("calibration"),
            lambda: run.metrics,
            lambda: _continue(folder),
        ):
            _, problem = attempt(action)
            if "Traceback" in problem or "\n" in problem:
                raise RuntimeError(problem)

    return read


def _continue(folder: Path) -> None:
    with open_run(folder, "model", data={"reference": "file:x.npz", "environment": None}) as run:
        run.forget_metrics_after(5)
        run.log([{"step": 2, "seed": 0, "loss": "1"}])
        run.save_checkpoint(1, {"weights": np.ones(3)})
        run.write_json("calibration", {})
        run.remove_checkpoints()
