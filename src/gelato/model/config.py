"""Settings of the latent model and its fit, with two presets: our default and the paper's."""

from dataclasses import dataclass, field, replace
from typing import Literal

from gelato.data.transitions import Dataset
from gelato.errors import InputError, require_positive
from gelato.model.networks import SMOOTH
from gelato.model.objective import TERMS
from gelato.runs.description import ADDED_LATER
from gelato.tasks.task import change_settings, find_task

Preset = Literal["default", "paper"]


@dataclass(frozen=True)
class ModelConfig:
    """All settings of a fit. Together with the data and the seeds they determine its result."""

    latent_size: int = 32
    """Number of latent dimensions."""
    decoders: int = 5
    """Number of decoders in the ensemble, `M` in the paper."""
    hidden: tuple[int, ...] = (256, 256)
    """Widths of the hidden layers of all networks except the forward model. The networks in the
    couplings have only one hidden layer."""
    forward_hidden: tuple[int, ...] = (512, 512)
    """Widths of the hidden layers of the forward model."""
    forwards: int = field(default=1, metadata=ADDED_LATER)
    """Number of forward and reward networks. With several, a random pair imagines each step."""
    forward_norm: bool = field(default=False, metadata=ADDED_LATER)
    """Whether the hidden layers of the forward model are normalised."""
    couplings: int = 2
    """Number of affine couplings in the embedding of latent state and action."""
    activation: str = "silu"
    """Activation of all networks; it must be smooth: silu, tanh, gelu or softplus."""
    input_scale: float = 1.0
    """Scale of the initial first-layer weights of forward model, reward and termination. A larger
    scale lets them fit finer detail."""
    shortcuts: bool = True
    """Whether encoder, forward model, reward and decoders have a linear shortcut."""
    minimum_variance: float = 1e-4
    """Smallest variance of encoder and forward model, and of the calibrated variance in phase 1."""
    observation_minimum_variance: float = 1e-6
    """Smallest variance of the variance networks of decoders and reward (phase 2)."""
    variance_per_dimension: bool = False
    """Whether phase 1 computes a separate variance for each state dimension. Otherwise all
    dimensions share one."""
    variance_centres: int = 0
    """Number of centres of the radial decoder variance, which is large in gaps of the data. 0: use
    an MLP for the variance."""
    kl_weight: float = 0.1
    """Weight of both KL divergences in the objective."""
    prediction_weight: float = 1.0
    """Weight of the term that predicts the next state through the forward model."""
    rewards_to_unit_range: bool = False
    """Whether rewards are mapped to [−1, 1], as in the paper, instead of standardised."""
    batch_size: int = 256
    """Number of transitions in a batch."""
    learning_rate: float = 1e-3
    """Initial learning rate of Adam."""
    learning_rate_decay: bool = True
    """Whether the learning rate decays to 1% in each phase, on a cosine schedule."""
    gradient_norm: float | None = 10.0
    """Norm to which gradients are clipped; None: no clipping."""
    target_rate: float = 0.01
    """Rate at which the target encoder follows the encoder."""
    updates: int = 100_000
    """Number of updates of phase 1, which trains everything except the variance networks."""
    variance_updates: int = 20_000
    """Number of updates of phase 2, which trains the variance networks of decoders and reward."""
    held_out_fraction: float = 0.1
    """Fraction of episodes held out, to choose the best weights and to measure accuracy."""

    def __post_init__(self) -> None:
        require_positive(self, "latent_size", "decoders", "couplings", "hidden", "forward_hidden")
        require_positive(self, "forwards")
        require_positive(self, "minimum_variance", "input_scale", "batch_size")
        require_positive(self, "learning_rate", "updates")
        if self.activation not in SMOOTH:
            raise InputError(f"activation {self.activation!r} is not one of {', '.join(SMOOTH)}")
        if min(self.variance_updates, self.variance_centres) < 0:
            raise InputError("variance_updates and variance_centres must not be negative")

    @property
    def term_weights(self) -> dict[str, float]:
        """The weight of each term of the objective; terms with weight 0 are omitted."""
        weights = dict.fromkeys(TERMS, 1.0) | {
            "prior": self.kl_weight,
            "dynamics": self.kl_weight,
            "prediction": self.prediction_weight,
        }
        return {name: weight for name, weight in weights.items() if weight}


DEFAULT = ModelConfig()

# The paper's table "Hyper parameters for variational model". It does not give M; we use 5.
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
# A history reveals more than an observation holds. With more dimensions than this, three decoders
# of an observation would leave some directions without length.
_LATENT_PER_OBSERVATION = 5


def preset(name: Preset, dataset: Dataset) -> ModelConfig:
    """Return the settings of a preset for a dataset: the general ones, changed by its task."""
    config = PAPER if name == "paper" else DEFAULT
    task = find_task(dataset.environment)
    if task is not None:
        config = change_settings(config, task, name, "model")
    if name == "paper":
        return config
    if task is None or "latent_size" not in task.settings(name, "model"):
        # Additional latent dimensions would encode noise and make the metric singular.
        hidden = dataset.transitions.past is not None
        factor = _LATENT_PER_OBSERVATION if hidden else _LATENT_PER_STATE
        most = factor * dataset.transitions.states.shape[1]
        config = replace(config, latent_size=min(config.latent_size, most))
    if task is not None and task.batch_fraction is not None:
        largest = int(task.batch_fraction * len(dataset.transitions))
        config = replace(config, batch_size=min(config.batch_size, largest))
    return config
