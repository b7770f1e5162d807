"""Fixtures every test may use: a Minari store of its own, and the recorded files where they are
present.
"""

import os
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path

import pytest

# Most of a test's time is compiling a program that runs for a moment: compile quickly, and each
# program once, also across processes. Has to be said before JAX starts.
_QUICK = ["backend_optimization_level=0", "llvm_disable_expensive_passes=true"]
if version("jaxlib") < "0.11":  # from where on XLA stops at a flag that it no longer knows
    _QUICK.append("cpu_use_fusion_emitters=false")
os.environ.setdefault("XLA_FLAGS", " ".join(f"--xla_{flag}" for flag in _QUICK))
os.environ.setdefault(
    "JAX_COMPILATION_CACHE_DIR", str(Path(__file__).parents[1] / ".pytest_cache" / "jax")
)
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.3")

# A worker takes a file at a time: those with one long preparation go first, so that the last one to
# end is short.
_LONG = ("test_readme.py", "test_train.py", "test_driving.py", "test_fit.py", "test_judge.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long files first."""
    items.sort(key=lambda item: item.path.name not in _LONG)


REALDATA = Path(__file__).parents[2] / "shared" / "realdata"


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty Minari store."""
    root = tmp_path / "store"
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(root))
    return root


@pytest.fixture(scope="session")
def shared_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A Minari store for the whole run, so that a dataset is made once."""
    root = tmp_path_factory.mktemp("store")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MINARI_DATASETS_PATH", str(root))
        yield root


@pytest.fixture(scope="session")
def realdata() -> Callable[[str], Path]:
    """The path of a recorded file; skips the test where those files are absent."""

    def find(name: str) -> Path:
        path = REALDATA / name
        if not path.exists():
            pytest.skip(f"recorded file {name} is not beside the checkout")
        return path

    return find
