"""Ctrl-C is never ignored, and no work is lost."""

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from gelato.runs.folder import Run
from gelato.runs.loop import finish, run_blocks
from gelato.runs.signals import exit_code, remember_interrupts, stop_between_blocks, stop_if_asked


@pytest.fixture(autouse=True)
def listening() -> Iterator[None]:
    """A test run in a shell's background inherits that Ctrl-C is ignored."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def press() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_the_first_ctrl_c_waits_for_the_block_and_the_second_does_not() -> None:
    with pytest.raises(KeyboardInterrupt), stop_between_blocks() as interrupted:
        assert not interrupted()
        press()
        assert interrupted()
        press()
        pytest.fail("a second one stops at once")
    with stop_between_blocks() as interrupted:
        assert not interrupted()


def test_one_that_python_dropped_stops_the_next_training() -> None:
    remember_interrupts()
    with contextlib.suppress(KeyboardInterrupt):
        press()
        pytest.fail("it is raised where it comes")
    with pytest.raises(KeyboardInterrupt), stop_between_blocks():
        pytest.fail("nothing begins")
    with stop_between_blocks() as interrupted:
        assert not interrupted()


def test_a_command_asked_to_end_waits_for_the_block_too() -> None:
    remember_interrupts()
    with pytest.raises(KeyboardInterrupt), stop_between_blocks() as interrupted:
        os.kill(os.getpid(), signal.SIGTERM)
        assert interrupted()
        stop_if_asked()
    assert exit_code() == 143
    with contextlib.suppress(KeyboardInterrupt):
        press()
    assert exit_code() == 130
    with contextlib.suppress(KeyboardInterrupt):
        stop_if_asked()


def test_a_program_that_uses_the_library_is_ended_as_before() -> None:
    with stop_between_blocks():
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_an_interrupted_training_goes_on_from_the_block_it_was_in(tmp_path: Path) -> None:
    folder = Run(tmp_path)
    seen: list[float] = []

    def block(
        state: jnp.ndarray, updates: int, at: float | None
    ) -> tuple[jnp.ndarray, dict[str, np.ndarray]]:
        seen.append(float(state[0]))
        if at == state[0]:
            press()
        return state + updates, {"loss": np.zeros(1)}

    def train(at: float | None = None) -> jnp.ndarray:
        start = jnp.zeros(1)
        settings = {"labels": [{"seed": 0}], "total": 8, "length": 2, "title": "counting"}
        return run_blocks(
            folder, start, lambda state, updates: block(state, updates, at), **settings
        )

    with folder.lock(), pytest.raises(KeyboardInterrupt):
        train(at=2.0)
    assert folder.checkpoints == [4]
    with folder.lock():
        assert train()[0] == 8
    assert seen == [0, 2, 4, 6]


def test_one_in_the_last_block_is_obeyed_once_the_result_is_kept(tmp_path: Path) -> None:
    folder = Run(tmp_path)

    def block(state: jnp.ndarray, updates: int) -> tuple[jnp.ndarray, dict[str, np.ndarray]]:
        press()
        return state + updates, {"loss": np.zeros(1)}

    with folder.lock(), pytest.raises(KeyboardInterrupt):
        state = run_blocks(
            folder, jnp.zeros(1), block, labels=[{"seed": 0}], total=2, length=2, title="counting"
        )
        finish(folder, lambda: folder.save("kept", state))
        pytest.fail("it was asked to stop")
    assert folder.has("kept")
    with stop_between_blocks() as interrupted:
        assert not interrupted()
