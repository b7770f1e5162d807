"""Fixtures every test may use: a Minari store of its own, and the recorded files where they are
present.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from experiments.quick_jax import compile_quickly

# Most of a test's time is compiling a program that runs for a moment. This must come before JAX.
compile_quickly(Path(__file__).parents[1] / ".pytest_cache" / "jax")

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
