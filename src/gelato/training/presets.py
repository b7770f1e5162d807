"""Named methods and the settings they use for a dataset.

`default` has the settings of our published tables. `small` ends within minutes on a laptop.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Literal, get_args

from gelato.agents.agent import AbstractAgent
from gelato.agents.cloning import Cloning
from gelato.agents.iql import IQL
from gelato.agents.mobile import MOBILE
from gelato.agents.ppo import PPO
from gelato.agents.rebrac import ReBRAC
from gelato.agents.sac import SAC
from gelato.data.transitions import Dataset
from gelato.dynamics.ensemble import EnsembleFit
from gelato.dynamics.fit import AbstractFit, PenaltySettings
from gelato.dynamics.latent import LatentFit
from gelato.dynamics.state import EnsembleConfig
from gelato.errors import InputError, require_positive
from gelato.model.config import ModelConfig, preset
from gelato.tasks.task import Config, Settings, Task, change_settings, find_task
from gelato.training.method import Method, name_variant
from gelato.uncertainty.build import Penalty

PresetName = Literal["default", "small"]
# The grid that `auto` trains. A calibrated penalty is 0 on the data and 1 on out-of-distribution
# pairs, so one grid serves every penalty and every task.
GRID_WEIGHTS = (0.3, 1.0, 3.0, 10.0, 30.0)
GRID_FRACTIONS = (0.05, 0.5)
_SMALL_WEIGHTS, _SMALL_FRACTIONS = (0.3, 3.0, 30.0), (0.05,)
# λ and fraction of real data of a method that is made alone: the middle of the grid.
DEFAULT_WEIGHT, DEFAULT_FRACTION = 3.0, 0.05
_STATE_NOISE = 0.01
# Changes of the preset `small`, for tasks without their own `small` preset.
_SMALL: dict[str, Settings] = {
    "model": {
        "decoders": 3,
        "hidden": (128, 128),
        "forward_hidden": (256, 256),
        "batch_size": 128,
        "updates": 12_000,
        "variance_updates": 2_000,
    },
    "ensemble": {"updates": 12_000, "hidden": (128, 128)},
    "sac": {"hidden": (128, 128), "batch_size": 128, "updates": 30_000, "branches": 400},
    "ppo": {"updates": 50_000},
    "train": {"points": 10_000, "evaluations": 5, "episodes": 5},
}


@dataclass(frozen=True)
class TrainSettings:
    """Settings that are not part of a method."""

    neighbours: int = 20
    """Number of neighbours in the average of a penalty."""
    points: int = 100_000
    """Number of transitions to search for neighbours, spread evenly over the data."""
    evaluations: int = 10
    """Evaluations in the real environment during training; 0 trains without returns."""
    episodes: int = 10
    """Episodes per evaluation."""

    def __post_init__(self) -> None:
        require_positive(self, "neighbours", "points", "episodes")
        if self.evaluations < 0:
            raise InputError(f"evaluations={self.evaluations}: must be at least 0")

    @property
    def penalties(self) -> PenaltySettings:
        """The settings that penalties need."""
        return PenaltySettings(self.neighbours, self.points)


@dataclass(frozen=True)
class Parts:
    """Building blocks of the named methods, with settings chosen for one dataset."""

    latent: LatentFit
    ensemble: EnsembleFit
    sac: SAC
    cloning: Cloning
    iql: IQL
    rebrac: ReBRAC
    mobile: MOBILE
    ppo: PPO | None = None
    settings: TrainSettings = TrainSettings()
    penalty_weights: tuple[float, ...] = GRID_WEIGHTS
    """Penalty weights λ that `auto` trains with."""
    real_fractions: tuple[float, ...] = GRID_FRACTIONS
    """Fractions of real data that `auto` trains with."""

    @property
    def imagining(self) -> AbstractAgent:
        """The agent for methods with a model: PPO if the task's preset has PPO, else SAC."""
        return self.sac if self.ppo is None else self.ppo

    def change_updates(self, updates: int) -> "Parts":
        """Return the parts with this number of updates for every agent."""
        changed: dict[str, object] = {}
        for part in fields(self):
            agent = getattr(self, part.name)
            if not isinstance(agent, AbstractAgent):
                continue
            new: dict[str, int] = {"updates": updates}
            if hasattr(agent, "epoch"):
                new["epoch"] = min(agent.epoch, updates)
            changed[part.name] = replace(agent, **new)  # type: ignore[type-var]
        return replace(self, **changed)  # type: ignore[arg-type]


MakeMethod = Callable[[Parts], Method]


@dataclass(frozen=True)
class NamedMethod:
    """A method that can be chosen by name."""

    name: str
    make: MakeMethod
    help: str


_METHODS: dict[str, NamedMethod] = {}


def register_method(name: str, make: MakeMethod, help: str = "") -> None:
    """Let `train` and the command line find a method by name.

    `make` receives the `Parts` chosen for the dataset and returns a `Method` of that name.
    """
    if name in _METHODS:
        raise InputError(f"a method named {name!r} is already registered; choose another name")
    if not callable(make):
        raise InputError(f"method {name!r}: make must be a function of Parts")
    _METHODS[name] = NamedMethod(name, make, help)


def list_methods() -> dict[str, NamedMethod]:
    """Return the registered methods by name."""
    return dict(_METHODS)


def make_method(name: str, parts: Parts) -> Method:
    """Make the method of that name from the parts chosen for a dataset."""
    if name not in _METHODS:
        raise InputError(f"method {name!r} is not one of {', '.join(_METHODS)}")
    method = _METHODS[name].make(parts)
    if not isinstance(method, Method) or method.name != name:
        raise InputError(f"method {name!r}: make returned {method!r}, not a Method of that name")
    return method


def change_method(
    method: Method,
    penalty: Penalty | None = None,
    penalty_weight: float | None = None,
    real_fraction: float | None = None,
) -> Method:
    """Apply the given changes. Raise an error for a change that has no effect on the method."""
    if penalty is not None:
        if not method.imagines:
            raise InputError(
                f"method {method.name} does not use imagined steps, so a penalty has no effect on "
                "it. Leave out --penalty"
            )
        weight = method.penalty_weight or DEFAULT_WEIGHT
        method = replace(method, penalty=penalty, penalty_weight=weight)
        if penalty == "none":
            method = replace(method, penalty_weight=0.0)
    if penalty_weight is not None:
        if not method.penalises:
            raise InputError(
                f"method {method.name} has no penalty, so a penalty weight has no effect on it"
            )
        method = replace(method, penalty_weight=penalty_weight)
    if real_fraction is not None:
        if not method.mixes_real_data:
            raise InputError(
                f"method {method.name} does not mix logged and imagined steps, so --real-fraction "
                "has no effect on it"
            )
        if not 0 <= real_fraction < 1:
            raise InputError(
                f"real_fraction={real_fraction}: must be at least 0 and below 1 (use the method "
                "`sac` to train on logged data only)"
            )
        method = replace(method, real_fraction=real_fraction)
    return method


def vary_method(
    method: Method, penalty_weights: Sequence[float] = (), real_fractions: Sequence[float] = ()
) -> list[Method]:
    """Return a variant of the method for every combination of the values.

    Values that the method would ignore are refused, as in `change_method`. The name of a variant
    says what varies.
    """
    variants = []
    for weight in penalty_weights or (None,):
        for fraction in real_fractions or (None,):
            changed = change_method(method, penalty_weight=weight, real_fraction=fraction)
            name = name_variant(
                method.name,
                weight if len(penalty_weights) > 1 else None,
                fraction if len(real_fractions) > 1 else None,
            )
            variants.append(replace(changed, name=name))
    return variants


def make_grid(name: str, parts: Parts) -> list[Method]:
    """Make the variants that `auto` trains: the grid of λ and fractions that the method uses."""
    method = make_method(name, parts)
    weights = parts.penalty_weights if method.penalises else ()
    fractions = parts.real_fractions if method.mixes_real_data else ()
    return vary_method(method, weights, fractions)


def choose_parts(dataset: Dataset, name: PresetName = "default") -> Parts:
    """Choose the settings of a preset for a dataset."""
    if name not in get_args(PresetName):
        raise InputError(f"preset {name!r} is not one of {', '.join(get_args(PresetName))}")
    task = find_task(dataset.environment)
    sac = _change(SAC(), task, name, "sac")
    learns_with_ppo = task is not None and "ppo" in task.presets.get("default", {})
    small = name == "small"
    return Parts(
        _change(LatentFit(_choose_model(dataset, name), _STATE_NOISE), task, name, "latent"),
        EnsembleFit(_change(EnsembleConfig(), task, name, "ensemble")),
        sac,
        clone_like(sac),
        IQL(discount=sac.discount, **_copy_sizes(sac)),
        _make_rebrac(sac, small),
        _make_mobile(sac),
        _change(PPO(), task, name, "ppo") if learns_with_ppo else None,
        _change(TrainSettings(), task, name, "train"),
        _SMALL_WEIGHTS if small else GRID_WEIGHTS,
        _SMALL_FRACTIONS if small else GRID_FRACTIONS,
    )


def _change(config: Config, task: Task | None, name: PresetName, part: str) -> Config:
    """Return one part of the general preset with the changes of the task."""
    if name == "small" and (task is None or "small" not in task.presets):
        return replace(config, **_SMALL.get(part, {}))  # type: ignore[type-var]
    if task is not None:
        config = change_settings(config, task, "default", part)
    if task is not None and name == "small":
        config = change_settings(config, task, "small", part)
    return config


def _choose_model(dataset: Dataset, name: PresetName) -> ModelConfig:
    model, task = preset("default", dataset), find_task(dataset.environment)
    if name == "default":
        return model
    if task is not None and "small" in task.presets:
        return change_settings(model, task, "small", "model")
    return replace(model, **_SMALL["model"])


def clone_like(sac: SAC) -> Cloning:
    """Return behaviour cloning with the sizes of a SAC agent."""
    return Cloning(rate=sac.critic_rate, **_copy_sizes(sac))


def _copy_sizes(sac: SAC) -> Settings:
    """Return the sizes of a SAC agent that agents without imagined steps have as well."""
    names = ("hidden", "batch_size", "updates", "epoch")
    return {name: getattr(sac, name) for name in names}


def _make_rebrac(sac: SAC, small: bool) -> ReBRAC:
    """Return ReBRAC with its own networks and batches, unless everything has to be small."""
    if small:
        return ReBRAC(**_copy_sizes(sac))
    return ReBRAC(updates=sac.updates, epoch=sac.epoch, discount=sac.discount)


def _make_mobile(sac: SAC) -> MOBILE:
    """Return MOBILE with the settings of a SAC agent, except for critics, targets and penalty."""
    own = ("critic_norm", "soft_targets", "truncation")
    shared = {each.name: getattr(sac, each.name) for each in fields(sac) if each.name not in own}
    return MOBILE(**shared)


def _make_imagining(name: str, space: str, penalty: str) -> MakeMethod:
    def make(parts: Parts) -> Method:
        fit: AbstractFit = parts.latent if space == "latent" else parts.ensemble
        weight = 0.0 if penalty == "none" else DEFAULT_WEIGHT
        return Method(name, parts.imagining, fit, penalty, weight, DEFAULT_FRACTION)

    return make


for _name, _space, _penalty, _help in (
    ("gelato", "latent", "geodesic", "latent model; penalty: geodesic distance"),
    ("gelato-l2", "latent", "euclidean", "latent model; penalty: Euclidean distance"),
    ("gelato-ensemble", "latent", "ensemble", "latent model; penalty: disagreement of decoders"),
    ("gelato-none", "latent", "none", "latent model without a penalty"),
    ("mopo", "state", "largest-deviation", "MOPO: state-space ensemble; penalty: its largest σ"),
    ("mbpo", "state", "none", "MBPO: the ensemble of `mopo` without a penalty"),
):
    register_method(_name, _make_imagining(_name, _space, _penalty), _help)
register_method(
    "sac", lambda parts: Method("sac", parts.sac), "SAC on logged data only, without a model"
)
register_method(
    "mobile",
    lambda parts: Method(
        "mobile", parts.mobile, parts.ensemble, "none", DEFAULT_WEIGHT, DEFAULT_FRACTION
    ),
    "MOBILE: the ensemble of `mopo`; penalty: inconsistency of Bellman targets",
)
register_method("rebrac", lambda parts: Method("rebrac", parts.rebrac), "ReBRAC, without a model")
register_method("iql", lambda parts: Method("iql", parts.iql), "IQL, without a model")
register_method("bc", lambda parts: Method("bc", parts.cloning), "behaviour cloning")
