"""A report that no run made: quick to build, and with every section."""

from dataclasses import replace
from typing import Any

import numpy as np

from gelato.report.page.records import (
    Column,
    DataSection,
    Interval,
    MapSection,
    ModelSection,
    PathsSection,
    PolicySection,
    Reproduction,
    RunReport,
    TrustSection,
    VerdictSection,
)

POINTS = 300


def make_example(**changes: Any) -> RunReport:
    """Return a complete report; `changes` replace fields."""
    report = RunReport(
        name="example",
        kind="policies",
        dataset="hopper-medium",
        environment="Hopper-v5",
        verdict=make_verdict(),
        data=make_data(),
        model=make_model(),
        map=make_map(),
        paths=make_paths(),
        policies=make_policies(),
        trust=make_trust(),
        reproduce=Reproduction(
            ("gelato train hopper-medium --run runs/example", "gelato select runs/example"),
            "runs/example",
            "0123456789abcdef",
            {"python": "3.11.7", "jax": "0.10.2"},
            {"gelato λ=3.agent.discount": "0.99", "seeds": "[0, 1]"},
        ),
        missing={},
    )
    return replace(report, **changes)


def make_verdict() -> VerdictSection:
    return VerdictSection(
        word="better than the data",
        advice="Worth a supervised test.",
        reasons=("the lower bound 1,200 is above the upper bound of the logged return, 1,100",),
        policy="gelato λ=3",
        seed=1,
        estimate=Interval(1350.0, 1200.0, 1500.0),
        logged=Interval(1050.0, 1000.0, 1100.0),
        outside_share=0.04,
        agreement=0.71,
        true_return=1302.0,
        weak_spots=("Where state[3] is between 0.7 and 2, 62% of the actions are trusted.",),
    )


def make_data() -> DataSection:
    column = Column("state[0]", -1.0, 2.0, 0.25, (1, 5, 9, 4, 0, 2), 5 / 6)
    odd = replace(column, name="state[1]", remark="never changes", histogram=(9,), coverage=1.0)
    return DataSection(
        summary={
            "transitions": 20_000,
            "episodes": 40,
            "terminations": 30,
            "truncations": 10,
            "length_mean": 500.0,
            "length_min": 100,
            "length_max": 1000,
            "return_mean": 1050.0,
            "return_std": 210.0,
            "return_min": 300.0,
            "return_max": 1600.0,
            "normalised_score": 33.0,
        },
        returns={"edges": [0.0, 500.0, 1000.0, 1500.0, 2000.0], "counts": [3.0, 10.0, 20.0, 7.0]},
        lengths={"edges": [0.0, 500.0, 1000.0], "counts": [15.0, 25.0]},
        states=(column, odd),
        actions=(replace(column, name="action[0]"),),
        columns=2,
        remarks=("state[1] never changes.",),
    )


def make_model() -> ModelSection:
    seed = {
        "seed": 1,
        "delta_r2": 0.93,
        "delta_r2_per_dimension": [0.97, 0.31],
        "negative_log_likelihood": -2.1,
        "coverage_50": 0.52,
        "coverage_90": 0.91,
        "coverage_99": 0.98,
        "reward_r2": 0.88,
        "terminations": 3,
        "termination_precision": 0.75,
        "termination_recall": None,
        "active_latents": 2,
        "rollouts": {
            "horizon": 5,
            "rmse": [0.05, 0.1, 0.2, 0.25, 0.3],
            "rmse_of_no_change": [0.3, 0.5, 0.6, 0.7, 0.8],
            "coverage_90": [0.9, 0.9, 0.89, 0.88, 0.86],
        },
    }
    steps = np.arange(6.0)
    quantiles = [(steps + shift).tolist() for shift in (-0.8, -0.3, 0, 0.3, 0.8)]
    return ModelSection(
        check={
            "held_out_transitions": 2000,
            "held_out_episodes": 4,
            "warnings": [],
            "seeds": [seed],
        },
        seed=1,
        names=("state[0]", "state[1]"),
        latent_size=2,
        decoders=3,
        fans=(
            {"name": "state[0]", "truth": steps.tolist(), "quantiles": quantiles},
            {"name": "state[1]", "truth": (-steps).tolist(), "quantiles": quantiles},
        ),
    )


def make_map() -> MapSection:
    rng = np.random.default_rng(0)
    places = rng.normal(size=(POINTS, 2))
    penalty = np.abs(places).sum(axis=1)
    points = {
        "x": places[:, 0],
        "y": places[:, 1],
        "episode": np.arange(POINTS) // 30,
        "step": np.arange(POINTS) % 30,
        "return": np.repeat(rng.normal(1000, 100, POINTS // 30), 30),
        "reward": rng.normal(size=POINTS),
        "error": rng.gamma(2, 0.1, POINTS),
        "penalty": penalty,
        "policy_penalty": penalty * 1.2,
        "trusted": (penalty <= 2.5).astype(int),
        "held_out": (np.arange(POINTS) % 10 == 0).astype(int),
        "states": places.T,
        "actions": rng.uniform(-1, 1, (1, POINTS)),
    }
    return MapSection(
        title="the latent space itself, which has 2 dimensions",
        axes=("z[0]", "z[1]"),
        variance=None,
        total=20_000,
        limit=2.5,
        state_names=("state[0]", "state[1]"),
        state_columns=2,
        action_names=("action[0]",),
        points=points,
        neighbours=[[(row + 1) % POINTS, (row + 2) % POINTS] for row in range(POINTS)],
        distances=[[0.1, 0.25] for _ in range(POINTS)],
    )


def make_paths() -> PathsSection:
    path = {
        "x": [0.0, 0.5, 1.0],
        "y": [0.0, 0.2, 0.1],
        "step": [0, 1, 2],
        "states": [[0.0, 0.5, 1.0], [0.0, 0.2, 0.1]],
        "return": 1302.0,
        "length": 3,
        "terminated": False,
        "crashed": None,
        "trusted_share": 1.0,
        "first_outside": None,
    }
    return PathsSection("Hopper-v5", (path,))


def make_policies() -> PolicySection:
    policies, curves = [], []
    for weight in (0.3, 3.0, 30.0):
        method = f"gelato λ={weight:g}"
        curves.append(
            {
                "method": method,
                "metric": "return",
                "steps": [1000, 2000, 3000],
                "mean": [300.0, 800.0, 1300 - weight],
                "low": [200.0, 700.0, 1200.0],
                "high": [400.0, 900.0, 1400.0],
                "seeds": 2,
                "not_finite": 0,
            }
        )
        for seed in (0, 1):
            estimates = []
            for number, name in enumerate(("cross-model", "fqe")):
                value = 1300 - weight * 10 + seed * 7 - number
                estimates.append(
                    {
                        "estimator": name,
                        "estimate": value,
                        "low": value - 100,
                        "high": value + 100,
                        "problem": None,
                        "details": {},
                    }
                )
            policies.append(
                {
                    "method": method,
                    "seed": seed,
                    "run": None,
                    "penalty_weight": weight,
                    "real_fraction": 0.05,
                    "rank": 0.5,
                    "chosen": weight == 3.0 and seed == 1,
                    "estimates": estimates,
                    "return": 1290 - weight * 9,
                    "return_std": 12.0,
                }
            )
    return PolicySection(
        metrics=("return",),
        curves=tuple(curves),
        policies=tuple(policies),
        estimators=("cross-model", "fqe"),
        correlations=[[1.0, 0.9, 0.8], [0.9, 1.0, 0.7], [0.8, 0.7, 1.0]],
        compared=("cross-model", "fqe", "measured return"),
        data_return=1050.0,
        finished=True,
    )


def make_trust() -> TrustSection:
    thresholds = np.linspace(0, 5, 101)
    episode = {
        "episode": 7,
        "length": 4,
        "return": 700.0,
        "step": [0, 1, 2, 3],
        "penalty": [0.2, 1.0, 3.1, 0.7],
        "mean_penalty": 1.25,
        "trusted_share": 0.75,
        "worst_step": 2,
    }
    return TrustSection(
        seed=1,
        penalty="guard",
        limit=2.5,
        false_alarm_rate=0.05,
        coverage=0.9,
        calibration_episodes=4,
        foreign_trusted=0.08,
        thresholds=thresholds.tolist(),
        false_alarms=np.exp(-1.2 * thresholds).tolist(),
        misses=(thresholds / 5 * 0.2).tolist(),
        histogram={
            "edges": np.linspace(0, 5, 11).tolist(),
            "inside": [0.6, 0.2, 0.1, 0.05, 0.03, 0.02, 0.0, 0.0, 0.0, 0.0],
            "outside": [0.0, 0.0, 0.02, 0.03, 0.05, 0.1, 0.1, 0.1, 0.2, 0.4],
        },
        episodes=(episode, {**episode, "episode": 3}),
        policy={
            "rollouts": 4,
            "horizon": 3,
            "still_inside": [1.0, 0.9, 0.75],
            "trusted_steps": 0.95,
            "steps_inside": 3.0,
            "median_penalty": [0.1, 0.2, 0.3],
            "high_penalty": [0.3, 0.5, 0.9],
            "trusted_at_data": 0.9,
            "logged_trusted": 0.95,
            "points": POINTS,
        },
    )
