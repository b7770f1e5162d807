"""Tasks that hide part of the state: `observe=positions` of a named dataset.

The simulator is that of the whole task. Its observation loses columns: all velocities in
locomotion, the speeds of the other cars in driving. One observation is then not the state, and a
policy needs a history.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import gymnasium
import numpy as np

from gelato.errors import InputError
from gelato.tasks.driving import DRIVING_TASKS
from gelato.tasks.environments import make_environment
from gelato.tasks.locomotion import LOCOMOTION_TASKS
from gelato.tasks.task import Task, register_task


@dataclass(frozen=True)
class PartialView:
    """What remains of the observations of a whole environment."""

    name: str
    whole: str
    environment: str
    columns: tuple[int, ...]


class PartialObservation(gymnasium.ObservationWrapper[np.ndarray, Any, np.ndarray]):
    """Show some columns of the flattened observation."""

    def __init__(self, env: gymnasium.Env[Any, Any], columns: Sequence[int]) -> None:
        super().__init__(env)
        space = env.observation_space
        assert isinstance(space, gymnasium.spaces.Box)
        self._columns = list(columns)
        low, high = (np.ravel(bound)[self._columns] for bound in (space.low, space.high))
        self.observation_space = gymnasium.spaces.Box(low, high, dtype=space.dtype.type)

    def observation(self, observation: np.ndarray) -> np.ndarray:
        """Return the columns that are shown."""
        return np.ravel(observation)[self._columns]


def make_partial(whole: str, columns: Sequence[int], **options: Any) -> PartialObservation:
    """Make an environment that shows some columns of another one."""
    return PartialObservation(make_environment(whole, **options), columns)


_VIEWS: dict[tuple[str, str], PartialView] = {}


def find_view(whole: str | None, name: str, reference: str) -> PartialView:
    """Return the view with this name, or raise an error that lists what can be hidden."""
    found = _VIEWS.get((whole or "", name))
    if found is None:
        known = sorted(view for environment, view in _VIEWS if environment == whole)
        others = ", ".join(sorted({environment for environment, _ in _VIEWS}))
        hint = f"it has observe={', '.join(known)}" if known else f"these have: {others}"
        raise InputError(f"{reference}: {whole} has no view observe={name}; {hint}")
    return found


def find_view_of(environment: str | None) -> PartialView | None:
    """Return the view that an environment shows, or None if it hides nothing."""
    for view in _VIEWS.values():
        if view.environment == environment:
            return view
    return None


def _register(task: Task, name: str, environment: str, columns: Sequence[int]) -> None:
    """Register a view, and the task of its environment."""
    view = PartialView(name, task.environment, environment, tuple(columns))
    _VIEWS[task.environment, name] = view
    names = task.state_names
    register_task(
        replace(
            task,
            name=f"{task.name}-{name}",
            environments=(environment,),
            prefix=None,
            entry_point="gelato.tasks.partial:make_partial",
            options={"whole": task.environment, "columns": view.columns},
            # Termination in locomotion depends on height and angle, which are shown.
            state_size=None if task.termination is None else len(columns),
            state_names=tuple(names[column] for column in columns) if names else (),
            # Neither the simulator nor the shipped policies know a state with hidden parts.
            make_simulator=None,
            simulator_can_be_copied=False,
            behaviour_policy=None,
            expert_policy=None,
        )
    )


def _list_positions(task: Task) -> list[int]:
    """List the columns of a locomotion task that are no velocities."""
    first = task.state_names.index("forward speed (m/s)")
    return list(range(first))


for _task in LOCOMOTION_TASKS:
    _id = _task.environment.removesuffix("-v5")
    _register(_task, "positions", f"gelato/{_id}Positions-v0", _list_positions(_task))

for _task in DRIVING_TASKS:
    if _task.name == "highway-fast":
        # Five cars with presence, x, y and two speeds; the own car comes first.
        _shown = [column for column in range(25) if column < 5 or column % 5 < 3]
        _register(_task, "positions", "gelato/HighwayFastPositions-v0", _shown)
