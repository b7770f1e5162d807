"""Types of arguments that several commands share, with their names and help."""

from pathlib import Path
from typing import Annotated

from tyro.conf import arg

Ref = Annotated[
    str,
    arg(
        metavar="REF",
        help=(
            "A dataset name (`gelato data list`), csv:PATH, parquet:PATH, lerobot:PATH, file:PATH, "
            "d4rl:PATH or minari:ID. Options follow after commas, without spaces. Examples:\n"
            "hopper-medium,transitions=50000,seed=1\n"
            "intersection,episodes=20\n"
            "csv:log.csv,observations=x*|speed,actions=torque,episode=run\n"
            "file:log.npz,observations=obs,low=-2,high=2"
        ),
    ),
]
RewardFile = Annotated[
    Path | None,
    arg(help="Python file whose function reward(states, actions, next_states) gives rewards."),
]
OptionalRef = Annotated[str | None, arg(metavar="REF")]
MovedData = Annotated[
    str | None, arg(metavar="REF", help="New location of the training data, if it moved.")
]
Training = Annotated[Path, arg(metavar="RUN", help="The folder of `gelato train`.")]
ModelRun = Annotated[
    Path, arg(metavar="RUN", help="The folder of `gelato model fit` or `gelato train`.")
]
Trainings = Annotated[
    tuple[Path, ...], arg(metavar="RUN [RUN ...]", help_behavior_hint="(required)")
]


def add_reward(reference: str, reward: Path | None) -> str:
    """Return the reference with the user's reward function."""
    return reference if reward is None else f"{reference},reward={reward}"
