"""`gelato train`, `methods` and `settings`: policies from logged data."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tyro.conf import Positional

from gelato.cli.arguments import Ref, RewardFile, add_reward
from gelato.cli.output import format_number, print_json, print_table, print_title
from gelato.cli.settings import list_settings, set_options
from gelato.errors import InputError

if TYPE_CHECKING:
    from gelato.data.transitions import Dataset
    from gelato.training.method import Method
    from gelato.training.presets import Parts


def run_training(
    reference: Positional[Ref],
    run: Path,
    method: tuple[str, ...] = ("gelato",),
    seeds: int = 1,
    first_seed: int = 0,
    preset: Literal["default", "small"] = "default",
    transitions: int | None = None,
    reward: RewardFile = None,
    model: Path | None = None,
    penalty: str | None = None,
    penalty_weight: tuple[str, ...] = ("auto",),
    real_fraction: tuple[float, ...] = (),
    state_noise: float | None = None,
    updates: int | None = None,
    model_updates: int | None = None,
    evaluations: int | None = None,
    episodes: int | None = None,
    set: tuple[str, ...] = (),
    log: tuple[str, ...] = (),
    json: bool = False,
) -> None:
    """Train policies from logged data: load the data, fit a model, train, evaluate.

    If the command is interrupted, repeat it to resume from the last checkpoint. All seeds train in
    one compiled program, together with methods that use the same model and agent. The real
    environment is used only to measure returns; no training decision depends on it. The printed
    table shows the last policies. Those with the best measured returns are saved as well. With
    `--penalty-weight auto`, the default, a grid of policies is trained, and `gelato select` chooses
    one of them from the logged data alone.

    Args:
        reference: The data.
        run: Run folder: all output of this training.
        method: One or more methods (`gelato methods` explains them). Methods share fitted models.
        seeds: Number of seeds. Each has its own model.
        first_seed: First seed.
        preset: `default` has the settings of our published tables. `small` finishes in minutes on a
            laptop.
        transitions: Size of a named dataset. Default: the size that `gelato data list` shows.
        model: Use the latent model in this folder (from `gelato model fit`). Default: fit a new
            one.
        penalty: Penalty on imagined steps (`gelato uncertainty --help` lists them).
        penalty_weight: One or more penalty weights λ: the reward subtracted for a penalty of 1, the
            value of clearly out-of-distribution pairs. All combinations are trained in one program.
            `auto` trains 0.3, 1, 3, 10 and 30 (0.3, 3 and 30 with `small`) and then selects a
            policy.
        real_fraction: One or more fractions of real data in each batch. Default: 0.05 and 0.5 with
            `auto`, else 0.05.
        state_noise: Noise on imagined states, in standard deviations of the data's states.
            Default: 0.01; 0 in Four Rooms and driving.
        updates: Updates of each policy. Default: 300,000; 30,000 with `small`. Driving tasks use
            PPO; there it is the number of imagined steps.
        model_updates: Updates of the model's first phase and of the ensemble. The model's second
            phase takes a fifth as many.
        evaluations: Evaluations in the real environment. Default: 10; 5 with `small`.
        episodes: Episodes per evaluation. Default: 10; 5 with `small`.
        set: Any other setting as NAME=VALUE, such as sac.horizon=10 or latent.model.decoders=7
            (`gelato settings REF` lists all of them).
        log: Experiment trackers that also receive metrics and results: tensorboard, wandb, mlflow
            (each needs the extra of its name). A resumed run continues the same tracked run.
        json: Print one JSON object instead of a table.
    """
    from gelato.runs.loggers import make_loggers
    from gelato.selection.select import measure_behaviour
    from gelato.training.presets import choose_parts
    from gelato.training.train import train
    from gelato.training.variants import refuse_unused_settings

    loggers = make_loggers(log)
    dataset = _load_data(reference, transitions, reward)
    parts = choose_parts(dataset, preset)
    parts = _change_parts(parts, updates, model_updates, state_noise)
    parts = _change_evaluation(set_options(parts, set), evaluations, episodes)
    weights = _read_weights(penalty_weight)
    chosen = _choose_methods(method, parts, penalty, weights, real_fraction)
    idle = {"model-updates": model_updates, "model": model, "state-noise": state_noise}
    _refuse_unused(idle, chosen)
    refuse_unused_settings(set, parts, chosen)
    select_after = weights is None and len(chosen) > 1
    if select_after:
        # Refuse data that `select` would refuse before minutes of training.
        measure_behaviour(dataset)
    records = train(
        dataset,
        run,
        chosen,
        seeds=seeds,
        first_seed=first_seed,
        settings=parts.settings,
        model=model,
        log=loggers,
    )
    output: dict[str, object] = {"run": str(run), "records": records}
    if not json:
        _print_records(records)
    if select_after:
        output["selection"] = _select_policy(run, show=not json)
    if json:
        print_json(output)


def methods() -> None:
    """List the methods that `gelato train --method` accepts."""
    from gelato.training.presets import list_methods

    rows = [(method.name, method.help) for method in list_methods().values()]
    print_table(("method", "description"), rows)


def settings(reference: Positional[Ref], preset: Literal["default", "small"] = "default") -> None:
    """List every setting that `gelato train --set NAME=VALUE` accepts, with its value for the data.

    A named dataset that does not exist yet is generated first, which can take minutes.

    Args:
        reference: The data.
        preset: The preset to show.
    """
    from gelato.data.reference import load
    from gelato.training.presets import choose_parts

    rows = list_settings(choose_parts(load(reference), preset))
    print_table(("setting", "value", "meaning"), rows)


def _load_data(reference: str, transitions: int | None, reward: Path | None) -> "Dataset":
    """Load the data, after a check of everything that can be checked without it."""
    from gelato.data.reference import load
    from gelato.data.sources import parse_reference
    from gelato.tasks.environments import check_environment

    if transitions is not None:
        if ":" in reference:
            raise InputError(
                f"--transitions sets the size of a named dataset; {reference} has a fixed size"
            )
        reference = f"{reference},transitions={transitions}"
    reference = add_reward(reference, reward)
    environment = parse_reference(reference).options.get("environment")
    if environment is not None:
        check_environment(environment)
    return load(reference)


def _select_policy(run: Path, *, show: bool) -> dict[str, object]:
    """Select a policy of the run and return the selection as plain values."""
    from gelato.cli.selection import print_verdict
    from gelato.selection.select import select

    selection = select([run])
    if show:
        print_verdict(selection)
    return selection.describe()


def _read_weights(given: tuple[str, ...]) -> tuple[float, ...] | None:
    """Read `--penalty-weight`: numbers, or None for `auto`."""
    if given == ("auto",):
        return None
    weights = []
    for text in given:
        try:
            weights.append(float(text))
        except ValueError as error:
            raise InputError(
                f"--penalty-weight: {text!r} is not a number. Give numbers, or auto alone"
            ) from error
    return tuple(dict.fromkeys(weights))


def _choose_methods(
    names: tuple[str, ...],
    parts: "Parts",
    penalty: str | None,
    weights: tuple[float, ...] | None,
    fractions: tuple[float, ...],
) -> "list[Method]":
    from gelato.training.variants import choose_methods

    return choose_methods(names, parts, penalty, weights, fractions)


def _refuse_unused(options: Mapping[str, object], methods: "list[Method]") -> None:
    """Raise an error if an option has no effect on any of the methods."""
    from gelato.dynamics.latent import LatentFit

    names = ", ".join(method.name for method in methods)
    latent = any(isinstance(method.fit, LatentFit) for method in methods)
    imagines = any(method.imagines for method in methods)
    for option, value in options.items():
        used = imagines if option == "model-updates" else latent
        if value is not None and not used:
            kind = "a model" if option == "model-updates" else "the latent model"
            raise InputError(
                f"--{option} has no effect on {names}: it applies only to methods with {kind}"
            )


def _change_parts(
    parts: "Parts", updates: int | None, model_updates: int | None, state_noise: float | None
) -> "Parts":
    if updates is not None:
        parts = parts.change_updates(updates)
    if model_updates is not None:
        second = max(1, model_updates // 5)
        model = replace(parts.latent.model, updates=model_updates, variance_updates=second)
        ensemble = replace(parts.ensemble.ensemble, updates=model_updates)
        parts = replace(
            parts,
            latent=replace(parts.latent, model=model),
            ensemble=replace(parts.ensemble, ensemble=ensemble),
        )
    if state_noise is not None:
        parts = replace(parts, latent=replace(parts.latent, state_noise=state_noise))
    return parts


def _change_evaluation(parts: "Parts", evaluations: int | None, episodes: int | None) -> "Parts":
    settings = parts.settings
    if evaluations is not None:
        settings = replace(settings, evaluations=evaluations)
    if episodes is not None:
        settings = replace(settings, episodes=episodes)
    return replace(parts, settings=settings)


def _print_records(records: list[dict[str, Any]]) -> None:
    from gelato.report.policy_table import return_form, show_return
    from gelato.report.references import shorten_reference

    rows = []
    for record in records:
        best, value = record["best_return"], record["initial_value"]
        row = (
            record["method"],
            format_number(record["penalty_weight"] or None, "g"),
            record["seed"],
            show_return(record),
            format_number(record["score"], ".1f"),
            format_number(best, return_form(best or 0.0)),
            format_number(value, return_form(value or 0.0)),
            format_number(record["mean_penalty"], ".2f"),
        )
        rows.append(row)
    first = records[0]
    where = (
        "returns were not measured"
        if first["return"] is None
        else f"return ± its 95% interval from {first['episodes']} episodes"
    )
    print_title(f"{shorten_reference(first['dataset'])}, {where}")
    scores = ("return (last)", "score", "best return", "critic value", "mean penalty")
    print_table(("method", "λ", "seed", *scores), rows)
