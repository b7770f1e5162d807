"""`python -m experiments.chaos.broken`: break gelato on purpose, and see what the harness says.

Each copy of the sources has one safety removed. The harness must find faults in every one of them
with few trials, and none in the sources as they are.
"""

import argparse
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
LOOP = "training loop"


@dataclass(frozen=True)
class Break:
    """A change of the sources, and the trials that must notice it."""

    name: str
    changes: tuple[tuple[str, str, str], ...]
    kinds: tuple[str, ...]
    cases: tuple[str, ...]
    trials: int = 40


_FILES, _FOLDER, _NPZ = "runs/files.py", "runs/folder.py", "runs/npz.py"
_NO_CHECK = (
    "runs/manifest.py",
    "    path = folder / name\n    if path.is_symlink():",
    "    return folder / name\n    path = folder / name\n    if path.is_symlink():",
)
BREAKS = (
    Break("nothing", (), ("kill at a call", "corruption"), (LOOP,)),
    Break(
        "no atomic rename",
        (
            (
                _FILES,
                "[stack.enter_context(_open_partial(path)) for path in paths]",
                "list(paths)",
            ),
            (_FILES, "                flush_file(partial)\n", "                pass\n"),
        ),
        ("kill at a call", "kill", "full disk"),
        (LOOP,),
    ),
    Break("no checksum", (_NO_CHECK,), ("corruption",), (LOOP,), trials=120),
    Break(
        "lock ignored",
        (
            (
                _FILES,
                "            yield locked and _is_at(descriptor, path)",
                "            yield True",
            ),
        ),
        ("several processes",),
        (LOOP,),
    ),
    Break(
        "partial file accepted",
        (
            _NO_CHECK,
            (
                _FOLDER,
                "    arrays = read_arrays(path)\n",
                "    try:\n        arrays = read_arrays(path)\n"
                "    except InputError:\n        arrays = {}\n",
            ),
            (
                _FOLDER,
                "        if array is None or array.shape != leaf.shape:\n",
                "        if array is None:\n            array = np.zeros(leaf.shape, leaf.dtype)\n"
                "        if array.shape != leaf.shape:\n",
            ),
        ),
        ("corruption",),
        (LOOP,),
        trials=120,
    ),
    Break(
        "random stream not restored",
        (
            (
                "runs/loop.py",
                "            return step, eqx.combine(jax.tree.map(jnp.asarray, loaded), static)",
                "            restart = lambda x: x * (not np.issubdtype(x.dtype, np.integer))\n"
                "            loaded = jax.tree.map(restart, loaded)\n"
                "            return step, eqx.combine(jax.tree.map(jnp.asarray, loaded), static)",
            ),
        ),
        ("kill at a call",),
        (LOOP,),
    ),
)


def main() -> int:
    """Test every broken copy; return 1 if one of them is not noticed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, default=Path("chaos"), help="folder of the trials")
    parser.add_argument("--results", type=Path, help="merge the findings into this file")
    parser.add_argument("--names", nargs="+", help="copies to test (default: all)")
    options = parser.parse_args()
    records, missed = [], 0
    for broken in BREAKS:
        if options.names and broken.name not in options.names:
            continue
        begun = time.monotonic()
        faults, first = _test(broken, options.work.absolute())
        missed += (faults == 0) != (broken.name == "nothing")
        trials = broken.trials * len(broken.kinds)
        print(f"{broken.name:28} {faults:3} of {trials} trials report it: {first}", flush=True)
        records.append(
            {
                "kind": "broken copy",
                "where": broken.name,
                "trials": trials,
                "faults": faults,
                "seed": 0,
                "seconds": round(time.monotonic() - begun),
            }
        )
    if options.results is not None:
        from gelato.runs.records import merge_records

        merge_records(options.results, records, keys=("kind", "where", "seed"))
    return 1 if missed else 0


def _test(broken: Break, work: Path) -> tuple[int, str]:
    """Break a copy of the sources, run the harness on it, and count the trials with a fault."""
    place = work / "broken" / broken.name.replace(" ", "-")
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(ROOT / "src", place / "src")
    for name, old, new in broken.changes:
        path = place / "src" / "gelato" / name
        text = path.read_text()
        assert text.count(old) == 1, f"{broken.name}: {name} has changed; adapt this change to it"
        path.write_text(text.replace(old, new))
    command = [sys.executable, "-m", "experiments.chaos", "--work", str(place / "work")]
    command += ["--trials", str(broken.trials), "--only", *broken.kinds, "--cases", *broken.cases]
    environment = {**os.environ, "PYTHONPATH": f"{place / 'src'}:{ROOT}"}
    ended = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True)
    found = [line for line in ended.stdout.splitlines() if line.startswith("FAULT")]
    if ended.returncode and not found:
        found = [f"the harness itself ended: {ended.stderr.strip().splitlines()[-1]}"]
    return len(found), (found[0][:160] if found else "")


if __name__ == "__main__":
    sys.exit(main())
