"""The training of one group: policies of several methods and seeds in one compiled program."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from jax.sharding import Mesh
from jaxtyping import PyTree

from gelato.data.summary import episode_returns
from gelato.dynamics.fit import AbstractFitted
from gelato.errors import InputError
from gelato.policy.deploy import deploy_all
from gelato.policy.evaluate import Evaluator
from gelato.policy.policy import DeployedPolicy, load_policies, pack_policies
from gelato.runs.folder import Run, format_json, open_run, save_arrays
from gelato.runs.loop import Metrics, finish, run_blocks
from gelato.runs.records import Record, format_records
from gelato.tasks.task import normalise_score
from gelato.training.live import LivePolicies
from gelato.training.method import Group, Method
from gelato.training.plan import Plan
from gelato.training.population import build_population
from gelato.training.program import (
    Population,
    init_policies,
    train_block,
    value_initial_states,
)
from gelato.training.sharding import (
    choose_mesh,
    place_policies,
    place_population,
    train_parts,
    value_parts,
)
from gelato.uncertainty.build import name_penalty


def train_group(plan: Plan, group: Group, run: Path, evaluate: Evaluator | None) -> list[Record]:
    """Train a group in its folder, or read the records of one that is finished."""
    path = run / "policies" / group.name
    names = [method.name for method in group.methods]
    with open_run(path, "agents", methods=names, seeds=list(plan.seeds)) as folder:
        if (path / "results.json").exists() and folder.has("last"):
            folder.remove_checkpoints()
            return folder.read_records()
        fitted = plan.fit(group.fit, run)
        population = build_population(
            plan.split_for(group.fit),
            fitted,
            group.methods,
            plan.seeds,
            plan.settings.penalties,
            folder,
        )
        devices = choose_mesh(population)
        if devices is not None:
            population = place_population(population, devices)
        training = _Training(plan, group, folder, fitted, population, evaluate, devices)
        state = run_blocks(
            folder,
            init_policies(population, group.agent),
            training.run_block,
            labels=training.labels,
            total=group.agent.total,
            length=group.agent.block,
            title=f"training {', '.join(names)}",
            after=training.measure,
            display=LivePolicies(training.labels),
        )
        records = training.make_records()

        def keep() -> None:
            with folder.write_together("last.npz", "results.json") as (last, results):
                save_arrays(last, pack_policies(training.deploy(state)))
                results.write_text(format_records(records))

        finish(folder, keep)
    return records


@dataclass
class _Training:
    """The data that the blocks of one group share, and the latest measurements.

    `devices` are those that share the policies; None means one device. `deviations` are the
    standard deviations of the latest returns over episodes.
    """

    plan: Plan
    group: Group
    folder: Run
    fitted: AbstractFitted | None
    population: Population
    evaluate: Evaluator | None
    devices: Mesh | None = None
    step: int = 0
    metrics: dict[str, np.ndarray] = field(default_factory=dict)
    deviations: dict[int, float] = field(default_factory=dict)
    best: "_Best | None" = None

    @property
    def labels(self) -> list[dict[str, str | int]]:
        """Method and seed of every policy, in the order of the program's axes."""
        found: list[dict[str, str | int]] = []
        for method in self.group.methods:
            for seed in self.plan.seeds:
                found.append({"method": method.name, "seed": seed})
        return found

    def run_block(self, states: PyTree, updates: int) -> tuple[PyTree, Metrics]:
        """Train for a block of updates; each metric has one entry per policy."""
        agent = self.group.agent
        if self.devices is None:
            states, measured = train_block(self.population, states, agent=agent, updates=updates)
        else:
            states = place_policies(states, self.devices)
            states, measured = train_parts(
                self.population, states, agent=agent, updates=updates, mesh=self.devices
            )
        self.metrics = {name: np.ravel(values) for name, values in measured.items()}
        return states, self.metrics

    def measure(self, states: PyTree, step: int) -> Metrics:
        """Measure the values of the first states, and returns when an evaluation is due."""
        found: dict[str, np.ndarray] = {}
        given = self.population, states, self.group.agent
        if self.devices is None:
            values = value_initial_states(*given)
        else:
            values = value_parts(*given, self.devices)
        if values is not None:
            found["initial_value"] = np.ravel(values)
        found |= self._measure_returns(states, step)
        self.step = step
        self.metrics = {**self.metrics, **found}
        return found

    def deploy(self, states: PyTree) -> list[DeployedPolicy]:
        """Return the policies as plain arrays, method by method."""
        encoders = None if self.fitted is None else self.fitted.encoders
        split = self.plan.split_for(self.group.fit)
        scaling = split.scaling if self.fitted is None else self.fitted.scaling
        shape = len(self.group.methods), len(self.plan.seeds)
        return deploy_all(self.group.agent.actor(states), encoders, scaling, *shape)

    def make_records(self) -> list[Record]:
        """Return one record per policy: the last returns, and the best on the way."""
        dataset = self.plan.dataset
        data_return = float(episode_returns(dataset.transitions).mean())
        best = None if self.evaluate is None else self._find_best()
        records: list[Record] = []
        for index, label in enumerate(self.labels):
            method = self.group.methods[index // len(self.plan.seeds)]
            last = self._latest("return", index)
            score = None if last is None else normalise_score(dataset.environment, last)
            record: Record = {
                "dataset": dataset.reference,
                **label,
                "steps": self.step,
                "return": last,
                "return_std": None if last is None else self.deviations.get(index),
                "score": score,
                "best_return": None if best is None else best.returns[index],
                "length": self._latest("length", index),
                "crash_rate": self._latest("crash_rate", index),
                "initial_value": self._latest("initial_value", index),
                "mean_penalty": self._latest("penalty", index),
                "data_return": data_return,
                **describe_settings(method, self.plan),
            }
            records.append(record)
        return records

    def _latest(self, name: str, index: int) -> float | None:
        values = self.metrics.get(name)
        if values is None or not np.isfinite(values[index]):
            return None
        return float(values[index])

    def _measure_returns(self, states: PyTree, step: int) -> dict[str, np.ndarray]:
        """Evaluate in the real environment if it is due, and keep the best policies."""
        agent, settings = self.group.agent, self.plan.settings
        due = _is_due(step, agent.block, agent.total, settings.evaluations)
        if self.evaluate is None or not due:
            missing = np.full(len(self.labels), np.nan)
            return dict.fromkeys(("return", "length", "crash_rate"), missing)
        policies = self.deploy(states)
        found = self.evaluate(policies, settings.episodes)
        returns = [evaluation.mean for evaluation in found]
        for index, evaluation in enumerate(found):
            self.deviations[index] = float(evaluation.returns.std())
        self._keep_best(policies, returns)
        return {
            "return": np.array(returns),
            "length": np.array([evaluation.lengths.mean() for evaluation in found]),
            "crash_rate": np.array([evaluation.crash_rate for evaluation in found], float),
        }

    def _find_best(self) -> "_Best | None":
        """Return the best policies so far. After a resume, read them from their files."""
        # A run killed between the two files has only one of them.
        written = self.folder.has("best") and (self.folder.folder / "best.json").exists()
        if self.best is None and written:
            try:
                policies = load_policies(self.folder.check("best.npz"))
                self.best = _Best(policies, self.folder.read_json("best")["returns"])
            except InputError as error:
                raise InputError(
                    f"{error}. Delete the file: training then records the best policies again from "
                    "this step on"
                ) from error
        return self.best

    def _keep_best(self, policies: Sequence[DeployedPolicy], returns: Sequence[float]) -> None:
        """Keep each policy with its best return so far in best.npz and best.json."""
        before = self._find_best()
        best = _Best(list(policies), list(returns))
        if before is not None:
            kept = [value > now for value, now in zip(before.returns, returns, strict=True)]
            if all(kept):
                return
            for index in np.flatnonzero(kept):
                best.policies[index] = before.policies[index]
                best.returns[index] = before.returns[index]
        self.best = best
        with self.folder.write_together("best.npz", "best.json") as (arrays, description):
            save_arrays(arrays, pack_policies(best.policies))
            description.write_text(format_json({"returns": best.returns}))


@dataclass(frozen=True)
class _Best:
    """Each policy with its best return."""

    policies: list[DeployedPolicy]
    returns: list[float]


def describe_settings(method: Method, plan: Plan) -> Record:
    """Return the settings that affect the policies of one method, as fields of a record."""
    described = {} if method.fit is None else method.fit.describe_settings()
    return {
        "transitions": len(plan.dataset.transitions),
        "episodes": plan.settings.episodes,
        "discount": getattr(method.agent, "discount", None),
        "state_noise": described.get("state_noise"),
        "largest_noise": described.get("largest_noise"),
        "penalty": name_penalty(method.penalty),
        "penalty_weight": method.penalty_weight,
        "real_fraction": method.real_fraction,
    }


def _is_due(step: int, length: int, total: int, evaluations: int) -> bool:
    """Return whether a block that ends at this step reaches the next evaluation."""
    before = (step - 1) // length * length
    return step * evaluations // total > before * evaluations // total
