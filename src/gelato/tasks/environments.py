"""Make environments, check which ones are installed, and open simulators."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import gymnasium

from gelato.errors import InputError, UserCodeError, first_line
from gelato.progress import note
from gelato.tasks.task import AbstractSimulator, find_task


class NotInstalledError(InputError):
    """An environment id is unknown, or a package that the environment needs is missing."""


def make_environment(
    environment: str | gymnasium.envs.registration.EnvSpec, **options: Any
) -> gymnasium.Env[Any, Any]:
    """Call `gymnasium.make` without checks at every step and without the libraries' warnings."""
    if "render_mode" in options:
        # Pygame complains if this variable is missing, as on machines without a desktop.
        os.environ.setdefault("XDG_RUNTIME_DIR", tempfile.gettempdir())
    spec = gymnasium.spec(environment) if isinstance(environment, str) else environment
    if not str(spec.entry_point).startswith("gymnasium.envs.mujoco"):
        return gymnasium.make(environment, disable_env_checker=True, **options)
    with silence_mujoco():
        return gymnasium.make(environment, disable_env_checker=True, **options)


@contextmanager
def silence_mujoco() -> Iterator[None]:
    """Stop MuJoCo from printing warnings and appending them to a file in the working directory."""
    import mujoco

    before = mujoco.get_mju_user_warning()
    mujoco.set_mju_user_warning(lambda _: None)
    try:
        yield
    finally:
        mujoco.set_mju_user_warning(before)


def check_environment(environment: str) -> None:
    """Make the environment once; raise `NotInstalledError` if it is not installed.

    Any other error of its constructor becomes a `UserCodeError`.
    """
    try:
        make_environment(environment).close()
    except (gymnasium.error.Error, ImportError) as error:
        raise NotInstalledError(
            f"{environment}: this environment is not installed ({first_line(error)}); correct the "
            "name, install its package, or leave out the environment"
        ) from error
    except Exception as error:
        raise UserCodeError(
            f"{environment}: the environment is installed, but making it failed "
            f"({type(error).__name__}: {first_line(error)}); correct its constructor or options"
        ) from error


def is_installed(environment: str) -> bool:
    """Return whether an environment can be made; being registered is not enough."""
    try:
        check_environment(environment)
    except NotInstalledError:
        return False
    return True


def find_available(recorded: str | None) -> str | None:
    """Return the environment to simulate for data recorded in `recorded`.

    This is the recorded environment, if it is installed. Otherwise it is the environment of the
    same task (with a note), or None if that is not installed either.
    """
    if recorded is None:
        return None
    if is_installed(recorded):
        return recorded
    task = find_task(recorded)
    if task is None or not is_installed(task.environment):
        note(f"{recorded}: this environment is not installed")
        return None
    note(f"the data was recorded in {recorded}; using {task.environment}, which is installed")
    return task.environment


def open_simulator(environment: str | None, state_size: int) -> AbstractSimulator | None:
    """Return a simulator whose state can be set and has this size.

    If there is none, print a note and return None.
    """
    task = find_task(environment)
    if task is None or task.make_simulator is None:
        note(f"{environment or 'the data'}: no simulator whose state can be set")
        return None
    ours = task.environment
    if environment != ours:
        note(f"the data was recorded in {environment}; using the simulator of {ours}")
    try:
        simulator = task.make_simulator()
    except (gymnasium.error.Error, ImportError, OSError) as error:
        note(f"{ours}: the simulator does not start ({first_line(error)})")
        return None
    if simulator.state_size not in (None, state_size):
        note(
            f"{ours}: its states have {simulator.state_size} numbers, but those of the data have "
            f"{state_size}; the simulator cannot be used"
        )
        return None
    return simulator
