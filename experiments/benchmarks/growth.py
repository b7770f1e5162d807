"""Measure time and memory of every stage for growing data on the disk.

python -m experiments.benchmarks.growth --transitions 100000 1000000

The rows are synthetic, from a known nonlinear system with the size of halfcheetah: 17 states and 6
actions. They are written into an HDF5 file, imported in blocks, summarised, split, fitted and
embedded. Every stage is a process of its own. Its peak memory is the sum of the anonymous memory
(RssAnon) of all its processes, read every 20 ms. Pages of files are not part of it.

The model has hidden layers of 64 units, because two cores need an hour to embed 5·10⁷ rows with the
default of 256 to 512. The fit alternates between updates from one pool that stays in memory and
updates from the disk. `disk_ratio` compares the two speeds, and `processor_ratio` the processor
times, which other programs on the machine disturb less. Starting Python, importing JAX and
compiling are not part of the seconds.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import h5py
import numpy as np

from gelato.runs.records import Record, device, merge_records

if TYPE_CHECKING:
    from gelato.model.config import ModelConfig
    from gelato.model.split import Split

STATES, ACTIONS, STEPS = 17, 6, 1_000
HIDDEN = 64
STAGES = ("import", "summary", "split", "fit", "embed")
RESULTS = Path(__file__).parents[2] / "results" / "growth.json"
# Episodes that are simulated together.
_TOGETHER = 250
_POLL_SECONDS = 0.02
# Updates between two checks of the held-out loss.
_LENGTH = 512


def write_log(path: Path, transitions: int) -> None:
    """Simulate episodes of `s′ = 0.9 s + 0.3 sin(A s) + 0.3 tanh(B a) + noise` into a file."""
    rng = np.random.default_rng(0)
    mix = rng.normal(size=(STATES, STATES)).astype(np.float32) / np.sqrt(STATES)
    push = rng.normal(size=(STATES, ACTIONS)).astype(np.float32)
    with h5py.File(path, "w") as file:
        widths = {"observations": STATES, "next_observations": STATES, "actions": ACTIONS}
        for name, width in widths.items():
            file.create_dataset(name, (transitions, width), np.float32)
        for name in ("rewards", "timeouts"):
            file.create_dataset(name, (transitions,), np.float32 if name == "rewards" else bool)
        for start in range(0, transitions, _TOGETHER * STEPS):
            count = min(_TOGETHER, (transitions - start) // STEPS)
            states = np.empty((count, STEPS + 1, STATES), np.float32)
            states[:, 0] = rng.normal(size=(count, STATES))
            actions = rng.uniform(-1, 1, (count, STEPS, ACTIONS)).astype(np.float32)
            noise = rng.standard_normal((count, STEPS, STATES), np.float32)
            for step in range(STEPS):
                now = states[:, step]
                change = np.sin(now @ mix.T) + np.tanh(actions[:, step] @ push.T)
                states[:, step + 1] = 0.9 * now + 0.3 * change + 0.01 * noise[:, step]
            rows = slice(start, start + count * STEPS)
            file["observations"][rows] = states[:, :-1].reshape(-1, STATES)
            file["next_observations"][rows] = states[:, 1:].reshape(-1, STATES)
            file["actions"][rows] = actions.reshape(-1, ACTIONS)
            file["rewards"][rows] = (states[:, 1:, 0] - 0.1 * (actions**2).sum(2)).reshape(-1)
            file["timeouts"][rows] = np.tile(np.arange(STEPS) == STEPS - 1, count)


def run_stage(stage: str, folder: Path, updates: int) -> Record:
    """Run one stage in this process; return its seconds and other figures."""
    from gelato.data import import_columns, load, summarise
    from gelato.model.split import split_dataset

    store = folder / "store"
    if stage == "import":
        with stopwatch() as watch:
            import_columns(f"file:{folder / 'log.hdf5'}", store)
        return {"seconds": watch[0]}
    dataset = load(f"columns:{store}")
    if stage == "summary":
        with stopwatch() as watch:
            summarise(dataset)
        return {"seconds": watch[0]}
    with stopwatch() as watch:
        split = split_dataset(dataset)
    if stage == "split":
        return {"seconds": watch[0]}
    if stage == "fit":
        return measure_fit(split, updates)
    import jax.numpy as jnp

    from gelato.arrays import take
    from gelato.model.fit import make_models
    from gelato.uncertainty.embedded import embed_all

    models = make_models(choose_config(), STATES, split.train.action_space, jnp.array([0]))
    # Compile before the time is taken.
    embed_all(take(models, 0), split.scaling, split.train[:65_536], folder / "warm")
    with stopwatch() as watch:
        embed_all(take(models, 0), split.scaling, dataset.transitions, folder / "embedded")
    shutil.rmtree(folder / "embedded")
    return {"seconds": watch[0]}


def choose_config() -> "ModelConfig":
    """Return the settings of a model that is small enough for two cores."""
    from gelato.model.config import DEFAULT

    return replace(
        DEFAULT,
        latent_size=STATES,
        decoders=3,
        hidden=(HIDDEN, HIDDEN),
        forward_hidden=(HIDDEN, HIDDEN),
    )


def measure_fit(split: "Split", updates: int) -> Record:
    """Time updates from the disk, between updates from a pool that stays in memory."""
    import jax
    import jax.numpy as jnp

    from gelato.model.data_checks import check_data, warn_about_data
    from gelato.model.fit import MEANS, FitData, begin_phase, make_models, run_block
    from gelato.model.pools import prepare_rows

    config = choose_config()
    with stopwatch() as checks:
        check_data(split, config)
        warn_about_data(split, config)
    seeds = jnp.array([0])
    models = make_models(config, STATES, split.train.action_space, seeds)
    state = begin_phase(config, MEANS, models)
    with stopwatch() as first_read:
        data = prepare_rows(split.train, split.held_out, split.scaling, config, (0,))
        resident = data.choose_pool(MEANS, 0, _LENGTH, 0)
    state, *_ = run_block((resident, seeds), state, config=config, phase=MEANS, updates=_LENGTH)
    seconds, processor = {"memory": 0.0, "disk": 0.0}, {"memory": 0.0, "disk": 0.0}
    step = 0
    blocks = -(-updates // _LENGTH)
    half = blocks // 2
    for place, count in [("memory", half), ("disk", blocks), ("memory", blocks - half)]:
        begun = time.process_time()
        with stopwatch() as watch:
            for _ in range(count):
                pool = resident
                if place == "disk":
                    pool = data.choose_pool(MEANS, step, _LENGTH, 2 * updates)
                    step += _LENGTH
                state, *_ = run_block(
                    (pool, seeds), state, config=config, phase=MEANS, updates=_LENGTH
                )
                jax.block_until_ready(state.step)
        seconds[place] += watch[0]
        processor[place] += time.process_time() - begun
    if not isinstance(data, FitData):
        data.__exit__(None, None, None)
    rate = {place: blocks * _LENGTH / spent for place, spent in seconds.items()}
    return {
        "seconds": checks[0] + first_read[0] + seconds["disk"],
        "updates": blocks * _LENGTH,
        "updates_per_second": round(rate["disk"], 1),
        "updates_per_second_from_memory": round(rate["memory"], 1),
        "disk_ratio": round(rate["disk"] / rate["memory"], 3),
        "processor_ratio": round(processor["memory"] / processor["disk"], 3),
        "resident": isinstance(data, FitData),
    }


@contextmanager
def stopwatch() -> Iterator[list[float]]:
    """Measure the seconds of a block."""
    found = [0.0]
    begun = time.monotonic()
    yield found
    found[0] = time.monotonic() - begun


def watch_stage(stage: str, folder: Path, updates: int) -> Record:
    """Run one stage in its own process, and add the peak of its anonymous memory."""
    command = [sys.executable, "-m", "experiments.benchmarks.growth", "--stage", stage]
    command += ["--folder", str(folder), "--updates", str(updates)]
    peak = 0
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(command, stdout=output)
        while process.poll() is None:
            peak = max(peak, sum(map(read_anonymous, list_family(process.pid))))
            time.sleep(_POLL_SECONDS)
        if process.returncode:
            raise SystemExit(f"the stage {stage} failed")
        output.seek(0)
        found: Record = json.loads(output.read().splitlines()[-1])
    return {**found, "peak_memory_gb": round(peak / 1e9, 3)}


def list_family(process: int) -> list[int]:
    """Return a process and all processes that it started."""
    family = [process]
    for task in Path(f"/proc/{process}/task").glob("*/children"):
        try:
            children = task.read_text().split()
        except OSError:
            continue
        for child in children:
            family += list_family(int(child))
    return family


def read_anonymous(process: int) -> int:
    """Return the bytes of anonymous memory of a process; 0 if it has ended."""
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        return 0
    kilobytes = [line.split()[1] for line in lines if line.startswith("RssAnon:")]
    return 1024 * int(kilobytes[0]) if kilobytes else 0


def measure(transitions: int, work: Path, updates: int, stages: list[str]) -> Iterator[Record]:
    """Yield the records of all stages for one size."""
    folder = Path(tempfile.mkdtemp(prefix=f"growth-{transitions}-", dir=work))
    try:
        print(f"writing {transitions:,} rows", flush=True)
        write_log(folder / "log.hdf5", transitions)
        for stage in stages:
            found = watch_stage(stage, folder, updates)
            found["seconds"] = round(float(found["seconds"] or 0), 2)
            record = {"stage": stage, "transitions": transitions, **found}
            record |= {"bytes": size_of(folder / "store"), "cores": os.cpu_count()}
            print(json.dumps(record), flush=True)
            yield {**record, "device": device()}
            if stage == "import":
                (folder / "log.hdf5").unlink()
    finally:
        shutil.rmtree(folder)


def size_of(folder: Path) -> int:
    """Return the bytes of all files of a folder."""
    return sum(file.stat().st_size for file in folder.iterdir())


def main() -> None:
    """Measure every stage for every size, and merge the records into the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--transitions", type=int, nargs="+", default=[100_000, 1_000_000])
    parser.add_argument("--updates", type=int, default=4_096, help="updates of the fit")
    parser.add_argument("--stages", nargs="+", choices=STAGES, default=list(STAGES))
    parser.add_argument("--work", type=Path, default=None, help="folder with room for the data")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--stage", choices=STAGES, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.stage is not None:
        print(json.dumps(run_stage(arguments.stage, arguments.folder, arguments.updates)))
        return
    for transitions in arguments.transitions:
        if transitions % STEPS:
            raise SystemExit(f"{transitions} is not a multiple of {STEPS}, an episode's steps")
        for record in measure(transitions, arguments.work, arguments.updates, arguments.stages):
            merge_records(arguments.results, [record], keys=("stage", "transitions", "device"))


if __name__ == "__main__":
    main()
