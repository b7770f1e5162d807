"""`python -m experiments.chaos.fuzz npz --seconds 600`: coverage-guided fuzzing of the readers.

Needs `pip install atheris`. Every input must be read, or refused in one line. The fuzzer stops at
the first traceback and keeps its input in the work folder.
"""

import argparse
import os
import sys
from pathlib import Path

import numpy as np


def main() -> None:
    """Fuzz one reader."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("reader", choices=["npz", "hdf5", "log", "json"])
    parser.add_argument("--seconds", type=int, default=600)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--work", type=Path, default=Path("chaos/fuzz"))
    options = parser.parse_args()
    os.environ["JAX_PLATFORMS"] = "cpu"
    import atheris

    with atheris.instrument_imports(include=["gelato.runs", "gelato.data", "zipfile", "csv"]):
        import gelato
        from gelato.data.reference import load
        from gelato.runs.folder import Run
        from gelato.runs.npz import read_arrays

    work = options.work.absolute() / options.reader
    corpus = work / "corpus"
    corpus.mkdir(parents=True, exist_ok=True)
    name = {"npz": "x.npz", "hdf5": "x.hdf5", "log": "metrics.csv", "json": "run.json"}
    path = work / name[options.reader]
    _write_first(corpus, options.reader)
    # Notes about odd data are thousands here.
    sys.stderr = open(os.devnull, "w")  # noqa: SIM115, PTH123

    def read(content: bytes) -> None:
        path.write_bytes(content)
        actions = {
            "npz": (lambda: read_arrays(path), lambda: load(f"file:{path}")),
            "hdf5": (lambda: load(f"file:{path}"),),
            "log": (lambda: Run(work).metrics,),
            "json": (lambda: Run(work).description,),
        }[options.reader]
        for action in actions:
            try:
                action()
            except gelato.InputError as error:
                assert "\n" not in str(error), error

    flags = [f"-max_total_time={options.seconds}", "-max_len=8192", "-timeout=20"]
    flags += [f"-seed={options.seed}", f"-artifact_prefix={work}/", "-rss_limit_mb=3000"]
    atheris.Setup([sys.argv[0], *flags, str(corpus)], read)
    atheris.Fuzz()


def _write_first(corpus: Path, reader: str) -> None:
    """Write one valid input for the fuzzer to start from."""
    columns = {"observations": np.zeros((4, 2)), "actions": np.zeros((4, 1))}
    columns |= {"rewards": np.zeros(4), "timeouts": np.ones(4)}
    if reader == "npz":
        np.savez(corpus / "first.npz", **columns)
    elif reader == "hdf5":
        import h5py

        with h5py.File(corpus / "first.hdf5", "w") as file:
            for name, column in columns.items():
                file[name] = column
    elif reader == "log":
        (corpus / "first.csv").write_text("step,seed,loss\n1,0,0.5\n2,0,0.25\n")
    else:
        (corpus / "first.json").write_text('{"format": 1, "kind": "model", "seeds": [0]}')


if __name__ == "__main__":
    main()
