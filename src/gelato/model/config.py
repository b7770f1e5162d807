"""Settings of the latent model and its fit, and the two presets: the paper's, and what was measured to be best."""

from dataclasses import dataclass, replace
from typing import Literal

from gelato.data.transitions import Dataset
from gelato.envs import FOUR_ROOMS, FOUR_ROOMS_GOAL
from gelato.envs.driving import drives
from gelato.errors import InputError
from gelato.model.networks import SMOOTH
from gelato.model.objective import TERMS

Preset = Literal["default", "paper"]


@dataclass(frozen=True)
class ModelConfig:
    """Everything that decides what a fit gives, the data and the seeds aside.

    `minimum_variance` holds for encoder and forward model and for the calibrated variance of phase 1,
    `observation_minimum_variance` for the variance networks of decoders and reward. With `variance_centres` the
    decoders' variance is radial around so many latent states of the data, and large in the gaps between them.
    `input_scale` multiplies the first weights of forward model, reward and termination: the larger, the finer the
    structure they begin with.
    """

    latent_size: int = 32
    decoders: int = 5
    hidden: tuple[int, ...] = (256, 256)
    forward_hidden: tuple[int, ...] = (512, 512)
    couplings: int = 2
    activation: str = "silu"
    input_scale: float = 1.0
    shortcuts: bool = True
    minimum_variance: float = 1e-4
    observation_minimum_variance: float = 1e-6
    variance_per_dimension: bool = False
    variance_centres: int = 0
    kl_weight: float = 0.1
    prediction_weight: float = 1.0
    rewards_to_unit_range: bool = False
    batch_size: int = 256
    learning_rate: float = 1e-3
    learning_rate_decay: bool = True
    gradient_norm: float | None = 10.0
    target_rate: float = 0.01
    updates: int = 100_000
    variance_updates: int = 20_000
    held_out_fraction: float = 0.1

    def __post_init__(self) -> None:
        positive = (
            "latent_size",
            "decoders",
            "couplings",
            "minimum_variance",
            "input_scale",
            "batch_size",
            "learning_rate",
            "updates",
        )
        for name in positive:
            if not getattr(self, name) > 0:
                raise InputError(f"the model's {name} is {getattr(self, name)}; it must be positive")
        if self.activation not in SMOOTH:
            raise InputError(f"activation {self.activation!r} is not one of {', '.join(SMOOTH)}")
        if min(self.variance_updates, self.variance_centres) < 0:
            raise InputError("variance_updates and variance_centres must not be negative")
        if min(self.hidden, default=0) < 1 or min(self.forward_hidden, default=0) < 1:
            raise InputError("networks need at least one layer of positive width")

    @property
    def term_weights(self) -> dict[str, float]:
        """The weight of each term of the objective; one without weight is none of it."""
        weights = dict.fromkeys(TERMS, 1.0) | {
            "prior": self.kl_weight,
            "dynamics": self.kl_weight,
            "prediction": self.prediction_weight,
        }
        return {name: weight for name, weight in weights.items() if weight}


DEFAULT = ModelConfig()

# Table "Hyper parameters for variational model"; M, which it leaves open, is 5.
PAPER = ModelConfig(
    forward_hidden=(256, 256),
    shortcuts=False,
    minimum_variance=1e-2,
    observation_minimum_variance=1e-2,
    kl_weight=1.0,
    prediction_weight=0.0,
    rewards_to_unit_range=True,
    batch_size=128,
    learning_rate_decay=False,
    gradient_norm=None,
    updates=100_000,
    variance_updates=50_000,
)


_LATENT_PER_STATE = 4


def preset(name: Preset, dataset: Dataset) -> ModelConfig:
    """The preset's settings for a dataset: both know Four Rooms and driving."""
    environment = dataset.environment
    if name == "paper":
        if environment in (FOUR_ROOMS, FOUR_ROOMS_GOAL):
            return replace(PAPER, latent_size=2)
        if drives(environment):
            return replace(PAPER, batch_size=32, updates=10_000, variance_updates=2_000)
        return PAPER
    if environment == FOUR_ROOMS_GOAL:
        return replace(
            DEFAULT,
            latent_size=2,
            decoders=3,
            hidden=(64, 64),
            forward_hidden=(128, 128),
            activation="tanh",
            input_scale=6.0,
            kl_weight=0.01,
            updates=8_000,
            variance_updates=1_000,
        )
    if environment == FOUR_ROOMS:
        return replace(
            DEFAULT,
            latent_size=2,
            hidden=(64, 64),
            forward_hidden=(64, 64),
            activation="tanh",
            variance_centres=200,
            batch_size=128,
            updates=10_000,
            variance_updates=2_000,
        )
    if drives(environment):
        return replace(
            DEFAULT,
            hidden=(128, 128),
            forward_hidden=(128, 128),
            # Five episodes may be fewer steps than that.
            batch_size=min(32, len(dataset.transitions) // 2),
            updates=10_000,
            variance_updates=2_000,
        )
    # Of few numbers many latent dimensions would be noise, and the metric singular.
    states = dataset.transitions.states.shape[1]
    return replace(DEFAULT, latent_size=min(DEFAULT.latent_size, _LATENT_PER_STATE * states))
