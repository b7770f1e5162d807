"""Settings and fixtures of all tests: Minari stores of their own, and recorded files if present."""

import gc
from collections.abc import Callable, Iterator
from pathlib import Path

import jax
import pytest

from experiments.quick_jax import compile_quickly

# Tests spend most of their time compiling programs that then run for a moment.
compile_quickly(Path(__file__).parents[1] / ".pytest_cache" / "jax")

# A worker runs one file at a time. Files with a long preparation go first, so that no worker starts
# one of them at the end.
_LONG = ("test_readme.py", "test_train.py", "test_fit.py", "test_judge.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run long files first."""
    items.sort(key=lambda item: item.path.name not in _LONG)


# A process may have 65,530 memory maps, and XLA crashes when it gets no more. Each compiled program
# has several.
_MOST_MAPS = 20_000


@pytest.fixture(scope="module", autouse=True)
def _forget_programs() -> Iterator[None]:
    """Drop compiled programs after a file of tests if the process has many."""
    yield
    maps = Path("/proc/self/maps")
    if maps.exists() and maps.read_text().count("\n") > _MOST_MAPS:
        jax.clear_caches()
        gc.collect()


REALDATA = Path(__file__).parents[2] / "shared" / "realdata"


_COMPILED: list[str] = []


def _note_compilation(name: str, seconds: float, **details: object) -> None:
    del seconds, details
    if name.endswith("backend_compile_duration"):
        _COMPILED.append(name)


jax.monitoring.register_event_duration_secs_listener(_note_compilation)


@pytest.fixture
def count_compilations() -> Callable[[Callable[[], object]], int]:
    """Return a function that runs another one and counts the programs that JAX compiles."""

    def count(run: Callable[[], object]) -> int:
        before = len(_COMPILED)
        run()
        return len(_COMPILED) - before

    return count


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of an empty Minari store."""
    root = tmp_path / "store"
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(root))
    return root


@pytest.fixture(scope="session")
def shared_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Yield a Minari store for the whole test run, so that a dataset is made once."""
    root = tmp_path_factory.mktemp("store")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MINARI_DATASETS_PATH", str(root))
        yield root


@pytest.fixture(scope="session")
def realdata() -> Callable[[str], Path]:
    """Return a function that finds a recorded file. It skips the test if the file is absent."""

    def find(name: str) -> Path:
        path = REALDATA / name
        if not path.exists():
            pytest.skip(f"recorded file {name} is not next to the checkout")
        return path

    return find
