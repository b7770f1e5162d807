"""Fixtures every test may use: a Minari store of its own, and the recorded files where they are present."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

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
