"""The methods of the paper's table, each a combination of values: dynamics, penalty, share of logged steps."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

from gelato.agents.ppo import PPOConfig
from gelato.agents.sac import SACConfig
from gelato.baselines.ensemble import EnsembleConfig
from gelato.data.summary import episode_returns
from gelato.data.transitions import Dataset
from gelato.envs import FOUR_ROOMS_GOAL
from gelato.envs.driving import DrivingTask, driving_task
from gelato.envs.scores import normalised_score, task_of
from gelato.errors import InputError
from gelato.model.config import ModelConfig, preset
from gelato.results import Settings
from gelato.uncertainty.build import PENALTIES

TrainPreset = Literal["default", "small"]


def check_penalty_weight(weight: float) -> None:
    """Refuse what is no λ."""
    if not 0 <= weight < math.inf:
        raise InputError(f"the penalty's weight is {weight}; it must be a number of at least 0")


@dataclass(frozen=True)
class Method:
    """`space` is what the policy sees: the latent state, or the normalised state itself.

    `penalty` names the penalty on imagined steps, `penalty_weight` is λ, and `real_share` the share of a batch that is
    logged; with 1 nothing is imagined.
    """

    name: str
    space: Literal["latent", "state"]
    penalty: str
    penalty_weight: float
    real_share: float
    clones: bool = False

    def __post_init__(self) -> None:
        check_penalty_weight(self.penalty_weight)
        if not 0 <= self.real_share <= 1:
            raise InputError(f"the share of logged steps is {self.real_share}; it must lie in [0, 1]")


# λ in units of reward; a calibrated penalty is 0 on the data and 1 on foreign pairs, so one λ is meant for them all.
# On locomotion it goes by the data's normalised score: small where there is little to stay close to, large where there
# is much, and half of a batch logged. Methods in the space of states were tried apart: for them half a batch pays on
# the best data only, and the largest λ nowhere (docs/policies.md).
_OTHERWISE, _REAL_SHARE = 4.0, 0.05
_POOR_SCORE, _POOR_WEIGHTS = 10.0, {"hopper": 1.0, "walker2d": 0.3, "halfcheetah": 0.3}
_USUAL_WEIGHT = 10.0
_GOOD_SCORE, _GOOD_WEIGHT, _GOOD_SHARE = 50.0, 30.0, 0.5
_DOUBT = 0.01
# Off the data a decoder's σ may be hundreds of times its mean, and a blur in proportion would throw states out of it.
BLUR_BOUND = 10.0
# A hopper that falls after a few hundred steps must mind now; to learn that far ahead takes more than `small` has.
_DISCOUNTS = {"hopper": 0.995}

METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        Method("gelato", "latent", "geodesic", _OTHERWISE, _REAL_SHARE),
        Method("gelato-l2", "latent", "euclidean", _OTHERWISE, _REAL_SHARE),
        Method("gelato-ensemble", "latent", "ensemble", _OTHERWISE, _REAL_SHARE),
        Method("gelato-none", "latent", "none", 0.0, _REAL_SHARE),
        Method("mopo", "state", "largest-deviation", _OTHERWISE, _REAL_SHARE),
        Method("mbpo", "state", "none", 0.0, _REAL_SHARE),
        Method("sac", "state", "none", 0.0, 1.0),
        Method("bc", "state", "none", 0.0, 1.0, clones=True),
    )
}


def method_for(
    name: str,
    dataset: Dataset,
    penalty: str | None = None,
    penalty_weight: float | None = None,
    real_share: float | None = None,
) -> Method:
    """The method of that name with its preset λ and share of logged steps for the data, or those given.

    `penalty` is for `gelato`; the share is for methods that imagine.
    """
    if name not in METHODS:
        raise InputError(f"method {name!r} is not one of {', '.join(METHODS)}")
    method = METHODS[name]
    if penalty is not None and name == "gelato":
        if penalty not in PENALTIES:
            raise InputError(f"penalty {penalty!r} is not one of {', '.join(PENALTIES)}")
        method = replace(method, penalty=penalty)
    weight, share = _weight_and_share(method, dataset)
    if method.space == "latent" and dataset.environment == FOUR_ROOMS_GOAL:
        share = 0.5
    if method.penalty_weight:
        method = replace(method, penalty_weight=weight if penalty_weight is None else penalty_weight)
    if real_share is not None and not 0 <= real_share < 1:
        raise InputError(f"the share of logged steps is {real_share}; it must lie in [0, 1), with 1 there is `sac`")
    return method if method.real_share == 1 else replace(method, real_share=share if real_share is None else real_share)


def _weight_and_share(method: Method, dataset: Dataset) -> tuple[float, float]:
    """λ and the share of logged steps in a batch, by how good the data is where that is known."""
    task = task_of(dataset.environment)
    score = normalised_score(dataset.environment, episode_returns(dataset.transitions).mean())
    if task is None or score is None:
        return _OTHERWISE, _REAL_SHARE
    if score < _POOR_SCORE:
        return _POOR_WEIGHTS[task], _REAL_SHARE
    good, latent = score >= _GOOD_SCORE, method.space == "latent"
    return _GOOD_WEIGHT if good and latent else _USUAL_WEIGHT, _GOOD_SHARE if good or latent else _REAL_SHARE


@dataclass(frozen=True)
class TrainConfig:
    """Settings of every stage. Neighbours are sought among `points` transitions, spread evenly over the data.

    `doubt` is how far imagined latent states are blurred, in units of the states' spread over the data, nowhere by more
    than `blur_bound` times that. With `ppo`, policies that learn in a model learn by PPO; else, and from logged steps
    alone, by SAC.
    """

    model: ModelConfig
    ensemble: EnsembleConfig
    sac: SACConfig
    ppo: PPOConfig | None = None
    neighbours: int = 20
    points: int = 100_000
    doubt: float = 0.0
    blur_bound: float = BLUR_BOUND
    evaluations: int = 10
    episodes: int = 10

    def __post_init__(self) -> None:
        for name in ("neighbours", "points", "evaluations", "episodes"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} is {getattr(self, name)}; it must be at least 1")
        check_doubt(self.doubt)


def check_doubt(doubt: float) -> None:
    """Refuse what is no size of a blur."""
    if not 0 <= doubt < math.inf:
        raise InputError(f"doubt is {doubt}; it must be a number of at least 0")


def settings_of(method: Method, dataset: Dataset, config: TrainConfig) -> Settings:
    """The settings that reach the policies of one method."""
    latent, ppo = method.space == "latent", None if method.real_share == 1 else config.ppo
    return Settings(
        transitions=len(dataset.transitions),
        episodes=config.episodes,
        discount=None if method.clones else (ppo or config.sac).discount,
        doubt=config.doubt if latent else None,
        largest_blur=config.blur_bound * config.doubt if latent else None,
        penalty=method.penalty,
        penalty_weight=method.penalty_weight,
        real_share=method.real_share,
    )


_GROUPS = ("latent", "state", "logged", "clones")


def grouped(methods: Sequence[Method], config: TrainConfig) -> dict[str, list[Method]]:
    """The methods by what their policies learn in, each group trained by one program.

    Those that learn from logged steps alone need no model; where one of states is at hand they are trained beside the
    others in it by the same algorithm, which costs less than a program of their own.
    """

    def group(method: Method) -> str:
        if method.clones:
            return "clones"
        return "logged" if method.real_share == 1 else method.space

    names = [group(method) for method in methods]
    if config.ppo is None and "state" in names:
        names = ["state" if name == "logged" else name for name in names]
    found = {name: [m for m, own in zip(methods, names, strict=True) if own == name] for name in _GROUPS}
    return {name: chosen for name, chosen in found.items() if chosen}


def train_preset(name: TrainPreset, dataset: Dataset) -> TrainConfig:
    """`default` is what the tables are made with; `small` ends within minutes on a laptop."""
    if name not in get_args(TrainPreset):
        raise InputError(f"preset {name!r} is not one of {', '.join(get_args(TrainPreset))}")
    model = preset("default", dataset)
    if dataset.environment == FOUR_ROOMS_GOAL:
        sac = SACConfig(
            hidden=(64, 64),
            actor_rate=1e-3,
            critic_rate=1e-3,
            discount=0.98,
            target_rate=0.01,
            initial_temperature=0.1,
            batch_size=128,
            updates=12_000,
            epoch=500,
            branches=200,
            replay=10_000,
        )
        return TrainConfig(model, EnsembleConfig(updates=8_000, hidden=(128, 128)), sac, evaluations=4, episodes=20)
    driving = driving_task(dataset.environment)
    if driving is not None:
        return _driving(driving, model, small=name == "small")
    if name == "default":
        discount = _DISCOUNTS.get(task_of(dataset.environment) or "", SACConfig.discount)
        return TrainConfig(model, EnsembleConfig(), SACConfig(discount=discount), doubt=_DOUBT)
    return TrainConfig(
        replace(
            model,
            decoders=3,
            hidden=(128, 128),
            forward_hidden=(256, 256),
            batch_size=128,
            updates=12_000,
            variance_updates=2_000,
        ),
        EnsembleConfig(updates=12_000, hidden=(128, 128)),
        SACConfig(hidden=(128, 128), batch_size=128, updates=30_000, branches=400),
        points=10_000,
        doubt=_DOUBT,
        evaluations=5,
        episodes=5,
    )


def _driving(task: DrivingTask, model: ModelConfig, *, small: bool) -> TrainConfig:
    """The paper's PPO and neighbours; a few hundred transitions need no large networks."""
    return TrainConfig(
        model,
        EnsembleConfig(updates=5_000, hidden=(64, 64), batch_size=32),
        SACConfig(hidden=(64, 64), discount=0.95, batch_size=64, updates=4_000, epoch=500),
        PPOConfig(total=50_000 if small else 350_000, discount=0.95, horizon=task.horizon),
        neighbours=5,
        evaluations=2 if small else 5,
    )
