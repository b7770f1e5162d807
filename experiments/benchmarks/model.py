"""Fit the latent model to each dataset with each preset, and record its accuracy.

python experiments/benchmarks/model.py hopper-medium --presets default paper --seeds 3

Existing runs are reused, and interrupted ones continue.
"""

import argparse
import csv
import re
import time
from dataclasses import fields, replace
from pathlib import Path

import numpy as np

from gelato.data.reference import load
from gelato.model.check import check_model
from gelato.model.config import ModelConfig, preset
from gelato.model.training import fit_model
from gelato.runs.records import device, merge_records

RESULTS = Path(__file__).parents[2] / "results"


def overrides(settings: list[str]) -> dict[str, object]:
    """Convert `name=value` pairs to settings of `ModelConfig`."""
    kinds = {field.name: field.type for field in fields(ModelConfig)}
    values: dict[str, object] = {}
    for setting in settings:
        name, value = setting.split("=")
        kind = str(kinds[name])
        if "tuple" in kind:
            values[name] = tuple(int(part) for part in value.split("x"))
        elif "bool" in kind:
            values[name] = value == "true"
        else:
            values[name] = int(value) if "int" in kind else value if "str" in kind else float(value)
    return values


def median_rate(metrics: Path, phase: str) -> float:
    """Return the median updates per second over the blocks of a phase.

    The median ignores compilation and interruptions.
    """
    with metrics.open(newline="") as file:
        return float(
            np.median(
                [
                    float(row["updates_per_second"])
                    for row in csv.DictReader(file)
                    if row["phase"] == phase
                ]
            )
        )


def main() -> None:
    """Fit the models, check them and write the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("references", nargs="+")
    parser.add_argument("--presets", nargs="+", default=["default"])
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    parser.add_argument("--results", type=Path, default=RESULTS / "model.json")
    parser.add_argument(
        "--set",
        nargs="*",
        default=[],
        help="settings to change, name=value; the record names them",
    )
    arguments = parser.parse_args()
    for reference in arguments.references:
        dataset = load(reference)
        for name in arguments.presets:
            config = replace(preset(name, dataset), **overrides(arguments.set))
            label = "+".join([name, *arguments.set])
            start = time.perf_counter()
            run = arguments.runs / re.sub(
                r"[^\w.+=-]", "_", f"{dataset.reference}-{label}-{arguments.seeds}"
            )
            fitted = fit_model(dataset, run, config=config, seeds=arguments.seeds)
            seconds = time.perf_counter() - start
            records = []
            for seed in check_model(fitted)["seeds"]:
                rollouts, objective = seed.pop("rollouts"), seed.pop("objective")
                rmse = {
                    f"rollout_rmse_{steps}": rollouts["rmse"][steps - 1]
                    for steps in (1, 10, 50)
                    if steps <= rollouts["horizon"]
                }
                records.append(
                    {"dataset": dataset.reference, "preset": label, **seed}
                    | rmse
                    | {f"objective_{term}": value for term, value in objective.items()}
                    | {
                        "updates": config.updates,
                        "variance_updates": config.variance_updates,
                        "seeds_at_once": arguments.seeds,
                        "updates_per_second": median_rate(run / "metrics.csv", "means"),
                        "seconds": round(seconds, 1),
                        "device": device(),
                    }
                )
                worst = min(value for value in seed["delta_r2_per_dimension"] if value is not None)
                records[-1]["delta_r2_worst_dimension"] = worst
                del records[-1]["delta_r2_per_dimension"]
                print({key: records[-1].get(key) for key in SHOWN}, flush=True)
            merge_records(arguments.results, records, keys=("dataset", "preset", "seed", "device"))


SHOWN = (
    "dataset",
    "preset",
    "seed",
    "delta_r2",
    "delta_r2_worst_dimension",
    "reward_r2",
    "coverage_90",
    "negative_log_likelihood",
    "active_latents",
    "rollout_rmse_10",
    "rollout_rmse_50",
    "updates_per_second",
    "seconds",
)

if __name__ == "__main__":
    main()
