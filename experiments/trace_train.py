"""Count the functions of gelato that `gelato train` calls, and its backward steps.

python experiments/trace_train.py hopper-medium --transitions 5000 --preset small --run DIR

A backward step is a call from a lower layer to a higher layer, or a file of the run that the
process writes and then reads. pyproject.toml defines the layers. Functions that run while JAX
traces a program or a module loads are counted separately. Make the dataset first
(`gelato data make`).
"""

import inspect
import os
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

PROJECT = Path(__file__).parents[1] / "pyproject.toml"


class Trace:
    """The functions that one command calls, and its backward steps."""

    def __init__(self, project: Path, run: Path) -> None:
        contracts = tomllib.loads(project.read_text())["tool"]["importlinter"]["contracts"]
        layers = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
        self._levels = {}
        for level, row in enumerate(reversed(layers)):
            for package in row.split("|"):
                self._levels[package.strip().strip("()")] = level
        self._run = str(run.absolute())
        self.host: set[str] = set()
        self.traced: set[str] = set()
        self.calls_back: set[tuple[str, str]] = set()
        self.read_back: set[str] = set()
        self._written: set[str] = set()

    def enter(self, frame: FrameType, event: str, _: Any) -> None:
        """Record a call. `sys.setprofile` calls this method."""
        name = _name(frame)
        is_function = frame.f_code.co_flags & inspect.CO_OPTIMIZED
        if event != "call" or name is None or not is_function or "<" in name or "__" in name:
            return
        caller = next(_gelato_callers(frame), None)
        if _runs_on_host(frame):
            self.host.add(name)
            if caller is not None and self._level(caller) < self._level(name):
                self.calls_back.add((caller, name))
        else:
            self.traced.add(name)

    def audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Record files of the run that are written and read."""
        if event == "open" and isinstance(arguments[0], (str, bytes, os.PathLike)):
            path, flags = os.fsdecode(arguments[0]), arguments[2] or 0
            if not path.startswith(self._run) or path.endswith(".lock"):
                return
            if flags & (os.O_WRONLY | os.O_RDWR):
                self._written.add(path)
            elif path in self._written:
                self.read_back.add(path.removeprefix(self._run))
        elif event == "os.rename" and os.fsdecode(arguments[0]) in self._written:
            self._written.add(os.fsdecode(arguments[1]))

    def _level(self, name: str) -> int:
        module = name.partition(":")[0]
        while module not in self._levels and "." in module:
            module = module.rpartition(".")[0]
        return self._levels.get(module, max(self._levels.values()))


def _name(frame: FrameType) -> str | None:
    module = frame.f_globals.get("__name__", "")
    if module != "gelato" and not module.startswith("gelato."):
        return None
    return f"{module}:{frame.f_code.co_qualname}"


def _gelato_callers(frame: FrameType) -> Iterator[str]:
    before = frame.f_back
    while before is not None:
        name = _name(before)
        if name is not None:
            yield name
        before = before.f_back


def _runs_on_host(frame: FrameType) -> bool:
    """Return whether the command makes this call, not JAX or an import."""
    before = frame.f_back
    while before is not None:
        module = before.f_globals.get("__name__", "")
        if module.split(".")[0] in ("jax", "equinox", "optax", "importlib"):
            return False
        before = before.f_back
    return True


def main() -> None:
    """Trace one training and print the counts and the backward steps."""
    from gelato.cli import main as run_command

    arguments = sys.argv[1:]
    project = PROJECT
    if "--project" in arguments:
        index = arguments.index("--project")
        project = Path(arguments[index + 1])
        del arguments[index : index + 2]
    trace = Trace(project, Path(arguments[arguments.index("--run") + 1]))
    sys.addaudithook(trace.audit)
    sys.setprofile(trace.enter)
    try:
        run_command(["train", *arguments])
    finally:
        sys.setprofile(None)
    others = trace.traced - trace.host
    print(f"functions entered: {len(trace.host)}")
    print(f"further functions entered while JAX traces or modules load: {len(others)}")
    print(f"calls from a lower layer to a higher layer: {len(trace.calls_back)}")
    for caller, name in sorted(trace.calls_back):
        print(f"  {caller} -> {name}")
    print(f"files written and read back: {len(trace.read_back)}")
    for path in sorted(trace.read_back):
        print(f"  {path}")
    if os.environ.get("TRACE_LIST"):
        print("\n".join(sorted(trace.host)))


if __name__ == "__main__":
    main()
