"""Algorithm 1, top to bottom: data, model, penalties, policies in the pessimistic MDP, the real environment.

run/                     what was asked for: data, methods, seeds, settings
run/model, run/ensemble  the fitted dynamics, each a run of its own
run/latent, run/state,   policies that learn in the latent model, beside the state model, from logged steps alone, and
run/logged, run/clones   clones: metrics and checkpoints, scales of penalties, then last.npz and best.npz
run/results.json         what every policy did in the real environment
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from gelato.agents.cloning import CLONING_METRICS
from gelato.agents.learner import (
    EPOCH_METRICS,
    actors_of,
    new_clones,
    new_policies,
    run_cloning,
    run_epoch,
)
from gelato.agents.ppo_learner import ITERATION_METRICS, new_ppo_policies, run_iterations
from gelato.agents.world import World, initial_values
from gelato.blocks import Metrics, finish, run_blocks
from gelato.data.reference import load
from gelato.data.spaces import Continuous
from gelato.data.summary import episode_returns
from gelato.data.transitions import Dataset
from gelato.envs.scores import normalised_score
from gelato.errors import InputError
from gelato.estimate import expected_seconds
from gelato.evaluation.deploy import deploy_all
from gelato.evaluation.deployed import DeployedPolicy, load_policies, save_policies
from gelato.evaluation.rollout import Evaluator, environment_of, evaluator
from gelato.methods import Method, TrainConfig, grouped, method_for, settings_of, train_preset
from gelato.model.latent import Scaling
from gelato.model.networks import GaussianMLP
from gelato.model.training import FittedModel, fit_model, load_model, split_for, split_to_fit
from gelato.progress import note
from gelato.results import Record, write_records
from gelato.runs import Run, seed_numbers
from gelato.tensorboard import mirror
from gelato.uncertainty.calibration import Calibrated
from gelato.worlds import latent_world, state_world

# Of PPO in one block.
_ITERATIONS = 5


def train(
    dataset: Dataset | str,
    run: Path | str,
    methods: Sequence[Method | str],
    *,
    seeds: int = 1,
    first_seed: int = 0,
    config: TrainConfig | None = None,
    model: Path | str | None = None,
    tensorboard: bool = False,
    workers: int | None = None,
) -> list[Record]:
    """Train every method with every seed into a run's folder, or go on with what was begun there.

    A method is a name, which means its preset for the data, or what `method_for` makes of one. `model` is the folder of
    a latent model fitted before, with these seeds among its own. With `tensorboard`, metrics are also written below
    `run/tensorboard`.
    """
    dataset = load(dataset) if isinstance(dataset, str) else dataset
    config = config or train_preset("default", dataset)
    numbers = seed_numbers(seeds, first_seed)
    data = dataset.transitions
    if (
        isinstance(data.action_space, Continuous)
        and not np.isfinite([data.action_space.low, data.action_space.high]).all()
    ):
        raise InputError(f"{dataset.reference}: the range of actions is unbounded; say it, for a file by ,low=,high=")
    environment = environment_of(dataset.environment, data.states.shape[1], data.action_space)
    chosen = [method_for(method, dataset) if isinstance(method, str) else method for method in methods]
    names = [method.name for method in chosen]
    if not names or len(set(names)) < len(names):
        raise InputError(f"methods {', '.join(names) or '(none)'} must be at least one, each with a name of its own")
    fitted = None if model is None else load_model(model, dataset).of_seeds(numbers)
    groups = grouped(chosen, config)
    # Data that cannot be split or fitted is refused before there is a folder.
    (split_to_fit if fitted is None and "latent" in groups else split_for)(dataset, config.model)
    folder = Run(Path(run))
    watching = mirror(folder.folder / "tensorboard") if tensorboard else nullcontext()
    with watching as watch, folder.locked():
        folder.begin(
            "policies",
            data={"reference": dataset.reference, "environment": dataset.environment},
            fingerprint=data.fingerprint(),
            methods=[asdict(method) for method in chosen],
            config=asdict(config),
            seeds=list(numbers),
            model=None if model is None else str(Path(model).absolute()),
        )
        if not (folder.folder / "results.json").exists():
            minutes = max(1, round(expected_seconds(dataset, chosen, seeds, config, fits=fitted is None) / 60))
            long = f"{minutes} minutes" if minutes > 1 else "a minute"
            if environment is None:
                note("there is no environment to run policies in; they are trained all the same")
            note(f"expect about {long} on this machine; Ctrl-C keeps what is done")
        context = nullcontext() if environment is None else evaluator(environment, workers)
        with context as evaluate:
            records: list[Record] = []
            for group, own in groups.items():
                records += _Group(dataset, folder.folder, group, own, numbers, config, fitted, evaluate, watch).train()
        write_records(folder.folder / "results.json", records)
    return records


@dataclass(frozen=True)
class _Program:
    """Untrained policies, how a block of so many steps trains them and what it measures, how many steps there are in
    all and in a block; `values` of the data's first states are measured after a block.
    """

    untrained: Any
    run: Callable[[Any, int], tuple[Any, Array]]
    metrics: Sequence[str]
    values: Callable[[Any], Array] | None
    total: int
    length: int

    def block(self, policies: Any, steps: int) -> tuple[Any, Metrics]:
        """Train for so many steps: the policies, and metrics with an entry for each of them."""
        policies, measured = self.run(policies, steps)
        flat = np.asarray(measured).reshape(-1, len(self.metrics))
        return policies, {name: flat[:, index] for index, name in enumerate(self.metrics)}

    def measure(self, policies: Any) -> Metrics:
        """What is known of policies without an environment."""
        return {} if self.values is None else {"initial_value": np.ravel(self.values(policies))}


@dataclass(frozen=True)
class _Group:
    """Methods whose policies are trained by one program, with every seed."""

    dataset: Dataset
    run: Path
    name: str
    methods: Sequence[Method]
    seeds: tuple[int, ...]
    config: TrainConfig
    fitted: FittedModel | None
    evaluate: Evaluator | None
    watch: Callable[[Sequence[Mapping[str, Any]]], None] | None

    def train(self) -> list[Record]:
        """Train, or read what was trained; the records of every policy."""
        folder = Run(self.run / self.name)
        with folder.locked():
            folder.begin("agents", methods=[method.name for method in self.methods], seeds=list(self.seeds))
            if not folder.has("last"):
                world, encoders, scaling = self._world(folder)
                program = self._program(world)

                def deployed(state: Any) -> list[DeployedPolicy]:
                    return deploy_all(actors_of(state), encoders, scaling, len(self.methods), len(self.seeds))

                def after(state: Any, step: int) -> Metrics:
                    due = _passes(step, program.length, program.total, self.config.evaluations)
                    return {**program.measure(state), **self._returns(folder, lambda: deployed(state), due)}

                state = run_blocks(
                    folder,
                    program.untrained,
                    program.block,
                    labels=self.labels,
                    total=program.total,
                    length=program.length,
                    title=f"training {', '.join(method.name for method in self.methods)}",
                    after=after,
                    status=_status,
                    mirror=self.watch,
                )
                finish(folder, lambda: save_policies(folder.folder / "last.npz", deployed(state)))
            return self._records(folder)

    @property
    def labels(self) -> list[dict[str, Any]]:
        """Method and seed of every policy, in the order of the program's axes."""
        return [{"method": method.name, "seed": seed} for method in self.methods for seed in self.seeds]

    def _world(self, folder: Run) -> tuple[World, GaussianMLP | None, Scaling]:
        """What the policies learn in, and what they see the real world by."""
        if self.name == "latent":
            fitted = self._fitted()
            world = latent_world(fitted, self.methods, self.config)
            return self._calibrated(folder, world), fitted.models.encoder, fitted.scaling
        world, scaling = state_world(self.dataset, self.run, self.methods, self.seeds, self.config)
        return self._calibrated(folder, world), None, scaling

    def _program(self, world: World) -> _Program:
        sac, ppo = self.config.sac, self.config.ppo
        if self.name == "clones":
            return _Program(
                untrained=new_clones(world, sac),
                run=lambda clones, updates: run_cloning(world, clones, config=sac, updates=updates),
                metrics=CLONING_METRICS,
                values=None,
                total=sac.updates,
                length=sac.epoch,
            )
        if ppo is not None and self.name != "logged":
            taken = ppo.steps_taken
            return _Program(
                untrained=new_ppo_policies(world, ppo),
                run=lambda policies, steps: run_iterations(world, policies, config=ppo, iterations=steps // taken),
                metrics=ITERATION_METRICS,
                values=lambda policies: initial_values(world, policies),
                total=ppo.whole_iterations * taken,
                length=_ITERATIONS * taken,
            )
        return _Program(
            untrained=new_policies(world, sac),
            run=lambda policies, updates: run_epoch(world, policies, config=sac, updates=updates),
            metrics=EPOCH_METRICS,
            values=lambda policies: initial_values(world, policies),
            total=sac.updates,
            length=sac.epoch,
        )

    def _calibrated(self, folder: Run, world: World) -> World:
        """The world with the penalties' scales as they are kept in the run; the first time, they are kept."""
        scales = {
            method.name: {name: np.asarray(getattr(penalty.scale, name)).tolist() for name in ("level", "unit")}
            for method, penalty in zip(self.methods, world.penalties, strict=True)
            if isinstance(penalty, Calibrated)
        }
        kept = folder.record("calibration", scales)
        penalties = tuple(
            eqx.tree_at(
                lambda p: (p.scale.level, p.scale.unit), penalty, [jnp.asarray(x) for x in kept[method.name].values()]
            )
            if isinstance(penalty, Calibrated)
            else penalty
            for method, penalty in zip(self.methods, world.penalties, strict=True)
        )
        return eqx.tree_at(lambda w: w.penalties, world, penalties)

    def _fitted(self) -> FittedModel:
        """The latent models of these seeds: given, or fitted here."""
        if self.fitted is not None:
            return self.fitted
        path, config = self.run / "model", self.config.model
        return fit_model(self.dataset, path, config=config, seeds=len(self.seeds), first_seed=self.seeds[0])

    def _returns(self, folder: Run, deployed: Callable[[], list[DeployedPolicy]], due: bool) -> Metrics:
        """Returns in the real environment, whenever an evaluation is due; the best policies are kept."""
        if self.evaluate is None or not due:
            return dict.fromkeys(("return", "length", "crash_rate"), np.full(len(self.labels), np.nan))
        policies = deployed()
        found = self.evaluate(policies, self.config.episodes)
        returns = np.array([evaluation.mean for evaluation in found])
        before = np.full(len(policies), -np.inf)
        for index, row in enumerate(folder.metrics):
            which = index % len(policies)
            before[which] = max(before[which], float(row["return"] or -np.inf))
        path = folder.folder / "best.npz"
        try:
            kept = load_policies(path) if path.exists() else policies
        except InputError as error:
            raise InputError(f"{error}; remove it, and the best from here on are kept") from error
        better = returns >= before
        save_policies(path, [new if b else old for b, new, old in zip(better, policies, kept, strict=True)])
        return {
            "return": returns,
            "length": np.array([evaluation.lengths.mean() for evaluation in found]),
            "crash_rate": np.array([evaluation.crash_rate for evaluation in found], float),
        }

    def _records(self, folder: Run) -> list[Record]:
        """What every policy came to: the last one, and the best return on the way."""
        rows = folder.metrics
        data_return = float(episode_returns(self.dataset.transitions).mean())
        records: list[Record] = []
        for label, method in zip(self.labels, [method for method in self.methods for _ in self.seeds], strict=True):
            own = [row for row in rows if (row["method"], row["seed"]) == (label["method"], str(label["seed"]))]
            returns = [float(row["return"]) for row in own if row["return"]]
            last = returns[-1] if returns else None
            records.append(
                {
                    "dataset": self.dataset.reference,
                    **label,
                    "steps": int(own[-1]["step"]),
                    "return": last,
                    "score": None if last is None else normalised_score(self.dataset.environment, last),
                    "best_return": max(returns) if returns else None,
                    "length": _number(own[-1].get("length")),
                    "crash_rate": _number(own[-1].get("crash_rate")),
                    "initial_value": _number(own[-1].get("initial_value")),
                    "mean_penalty": _number(own[-1].get("penalty")),
                    "data_return": data_return,
                    **asdict(settings_of(method, self.dataset, self.config)),
                }
            )
        return records


def _passes(step: int, length: int, total: int, evaluations: int) -> bool:
    """Whether a block that ends at this step passes the next of so many evaluations."""
    before = (step - 1) // length * length
    return step * evaluations // total > before * evaluations // total


def _status(metrics: Metrics) -> str:
    shown = [f"{name} {np.mean(metrics[name]):.3g}" for name in ("loss", "value", "penalty") if name in metrics]
    returns = metrics["return"]
    if np.isfinite(returns).any():
        shown.append(f"return {np.nanmean(returns):.0f}")
    return ", ".join(shown)


def _number(text: str | None) -> float | None:
    return float(text) if text else None
