"""`gelato model`: fit the latent model of the dynamics and measure its accuracy."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tyro.conf import Positional

from gelato.cli.arguments import ModelRun, MovedData, Ref
from gelato.cli.output import check_picture, format_number, print_json, print_table
from gelato.cli.parsing import Commands

if TYPE_CHECKING:
    from gelato.model.training import FittedModel

model = Commands()


@model.command
def fit(
    reference: Positional[Ref],
    run: Path,
    preset: Literal["default", "paper"] = "default",
    seeds: int = 1,
    first_seed: int = 0,
    latent_size: int | None = None,
    decoders: int | None = None,
    batch_size: int | None = None,
    updates: int | None = None,
    variance_updates: int | None = None,
) -> None:
    """Fit the latent model to a dataset, for one or several seeds at once.

    Run the same command again to continue a fit that was interrupted or killed. It continues from
    the last checkpoint and ends with the same weights, bit for bit.

    Args:
        reference: The data.
        run: Folder of the run: configuration, weights, metrics, checkpoints.
        preset: `default` gave the best policies in our measurements; `paper` has the paper's
            hyperparameters.
        seeds: Number of models, fitted by one compiled program.
        first_seed: The first seed.
        latent_size: Dimensions of the latent state.
        decoders: Members of the decoder ensemble.
        batch_size: Transitions in a batch.
        updates: Updates of phase 1, which trains all networks except the variance networks.
        variance_updates: Updates of phase 2, which trains the variance networks.
    """
    from gelato.data.reference import load
    from gelato.model.config import preset as preset_for
    from gelato.model.training import fit_model

    dataset = load(reference)
    given = {
        "latent_size": latent_size,
        "decoders": decoders,
        "batch_size": batch_size,
        "updates": updates,
        "variance_updates": variance_updates,
    }
    chosen: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    config = replace(preset_for(preset, dataset), **chosen)
    fitted = fit_model(dataset, run, config=config, seeds=seeds, first_seed=first_seed)
    print_check(run_check(fitted))


@model.command(name="check")
def check_fit(
    run: Positional[ModelRun],
    json: bool = False,
    plot: Path | None = None,
    fitted_to: MovedData = None,
) -> None:
    """Measure the accuracy of a fitted model on held-out episodes, for one step and for rollouts.

    Args:
        json: Print one JSON object and nothing else.
        plot: Also plot open-loop rollouts and the recorded states into this file (.png, .pdf or
            .svg).
    """
    check_picture(plot)
    fitted = load_fitted(run, fitted_to)
    result = run_check(fitted)
    if plot is not None:
        from gelato.report.model_figure import draw_rollouts

        draw_rollouts(fitted, plot)
    if json:
        print_json(result)
    else:
        print_check(result)


def load_fitted(run: Path, fitted_to: str | None) -> "FittedModel":
    """Load the model of a run with its data, from the recorded or the new location."""
    from gelato.data.reference import load
    from gelato.model.training import load_model

    return load_model(run, None if fitted_to is None else load(fitted_to))


def run_check(fitted: "FittedModel") -> dict[str, Any]:
    """Check a model and show a progress message, because large data takes time."""
    from gelato.model.check import check_model
    from gelato.progress import working

    with working("checking on held-out episodes"):
        return check_model(fitted)


def print_check(result: dict[str, Any]) -> None:
    """Print the check as a table with a column for each seed."""
    from gelato.progress import note
    from gelato.report.references import shorten_reference

    seeds = result["seeds"]
    rows = [
        ("R² of the state change", "delta_r2", ".4f"),
        ("negative log-likelihood", "negative_log_likelihood", ".3f"),
        ("50% intervals cover", "coverage_50", ".1%"),
        ("90% intervals cover", "coverage_90", ".1%"),
        ("99% intervals cover", "coverage_99", ".1%"),
        ("R² of the reward", "reward_r2", ".4f"),
        ("terminations in held-out data", "terminations", "d"),
        ("termination precision", "termination_precision", ".3f"),
        ("termination recall", "termination_recall", ".3f"),
        ("active latent dimensions", "active_latents", "d"),
    ]
    lines = []
    for label, key, form in rows:
        lines.append((label, *(format_number(seed[key], form) for seed in seeds)))
    horizon = seeds[0]["rollouts"]["horizon"]
    for steps in sorted({1, min(10, horizon), horizon}):
        errors = (f"{s['rollouts']['rmse'][steps - 1]:.3f}" for s in seeds)
        lines.append((f"rollout RMSE after {steps} steps (std)", *errors))
    for term in seeds[0]["objective"]:
        values = (format_number(seed["objective"][term], ".3f") for seed in seeds)
        lines.append((f"objective: {term}", *values))
    held_out = f"{result['held_out_transitions']:,} held-out transitions"
    title = f"{shorten_reference(result['dataset'])}, {held_out}"
    print_table((title, *(f"seed {seed['seed']}" for seed in seeds)), lines)
    for warning in result["warnings"]:
        note(warning)
