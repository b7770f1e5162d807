"""`gelato train`, `evaluate`, `table`, `export`: policies from logged data."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import Positional, arg

from gelato.cli.data import Ref, add_reward
from gelato.cli.output import check_file, print_json, print_table, print_title
from gelato.cli.settings import list_settings, set_options
from gelato.errors import InputError

if TYPE_CHECKING:
    from gelato.training.method import Method
    from gelato.training.presets import Parts
    from gelato.uncertainty.trust import Trust


def train(
    reference: Positional[Ref],
    run: Path,
    method: tuple[str, ...] = ("gelato",),
    seeds: int = 1,
    first_seed: int = 0,
    preset: Literal["default", "small"] = "default",
    transitions: int | None = None,
    reward: Path | None = None,
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
    tensorboard: bool = False,
    json: bool = False,
) -> None:
    """Train policies from logged data: load the data, fit a model, train, evaluate.

    If the command is interrupted, repeat it to resume from the last checkpoint. All seeds train in
    one compiled program, together with methods that use the same model and agent. The real
    environment is used only to measure returns; no training decision depends on it. The report
    shows the last policy. The policy with the best return is saved as well. With
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
        reward: Python file with a function reward(states, actions, next_states) -> rewards.
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
        tensorboard: Also write metrics for TensorBoard into the run folder.
        json: Print one JSON object instead of a table.
    """
    from gelato.data.reference import load
    from gelato.data.sources import parse_reference
    from gelato.tasks.environments import check_environment
    from gelato.training.presets import choose_parts
    from gelato.training.train import train as train_policies

    if transitions is not None:
        if ":" in reference:
            raise InputError(
                f"--transitions sets the size of a named dataset; {reference} has a fixed size"
            )
        reference = f"{reference},transitions={transitions}"
    reference = add_reward(reference, reward)
    named = parse_reference(reference).options.get("environment")
    if named is not None:
        check_environment(named)
    dataset = load(reference)
    parts = choose_parts(dataset, preset)
    parts = _change_parts(parts, updates, model_updates, state_noise)
    parts = set_options(parts, set)
    counts = {"evaluations": evaluations, "episodes": episodes}
    given: dict[str, Any] = {name: value for name, value in counts.items() if value is not None}
    settings = replace(parts.settings, **given)
    weights = _read_weights(penalty_weight)
    chosen = _choose_methods(method, parts, penalty, weights, real_fraction)
    idle = {"model-updates": model_updates, "model": model, "state-noise": state_noise}
    _refuse_unused(idle, chosen)
    records = train_policies(
        dataset,
        run,
        chosen,
        seeds=seeds,
        first_seed=first_seed,
        settings=settings,
        model=model,
        tensorboard=tensorboard,
    )
    if not json:
        _print_records(records)
    verdict = None
    if weights is None and len(chosen) > 1:
        from gelato.cli.selection import print_verdict
        from gelato.selection.select import select as select_policy

        verdict = select_policy([run])
        if not json:
            print_verdict(verdict)
    if json:
        selection = {} if verdict is None else {"selection": verdict.describe()}
        print_json({"run": str(run), "records": records, **selection})


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
    """Make the methods and their variants. An option must apply to at least one method.

    Without `weights`, the grid of the parts is trained.
    """
    from gelato.training.presets import change_method, make_method, vary_method

    chosen = [make_method(name, parts) for name in dict.fromkeys(names)]
    if penalty is not None:
        chosen = _change_all(chosen, lambda method: [change_method(method, penalty)])
    grid = parts.penalty_weights if weights is None else weights
    chosen = _change_all(chosen, lambda method: vary_method(method, grid), optional=weights is None)
    shares = fractions
    if weights is None and not fractions:
        shares = parts.real_fractions
    if shares:
        chosen = _change_all(
            chosen,
            lambda method: vary_method(method, (), tuple(dict.fromkeys(shares))),
            optional=not fractions,
        )
    return chosen


def _change_all(
    methods: "list[Method]", change: "Callable[[Method], list[Method]]", optional: bool = False
) -> "list[Method]":
    """Change every method that accepts the change; unless it is optional, one must accept it."""
    found, refusals = [], []
    for method in methods:
        try:
            found += change(method)
        except InputError as error:
            refusals.append(error)
            found.append(method)
    if len(refusals) == len(methods) and not optional:
        raise refusals[0]
    return found


def _refuse_unused(options: dict[str, Any], methods: "list[Method]") -> None:
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
        sac = replace(parts.sac, updates=updates, epoch=min(parts.sac.epoch, updates))
        cloning = replace(parts.cloning, updates=updates, epoch=sac.epoch)
        ppo = None if parts.ppo is None else replace(parts.ppo, updates=updates)
        parts = replace(parts, sac=sac, cloning=cloning, ppo=ppo)
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


def _print_records(records: list[dict[str, Any]]) -> None:
    from gelato.report.policy_table import return_form, show_return
    from gelato.report.references import shorten_reference

    def number(value: Any, form: str | None = None) -> str:
        if value is None:
            return "-"
        return f"{value:{form or return_form(value)}}"

    rows = [
        (
            str(record["method"]),
            number(record["penalty_weight"] or None, "g"),
            str(record["seed"]),
            show_return(record),
            number(record["score"], ".1f"),
            number(record["best_return"]),
            number(record["initial_value"]),
            number(record["mean_penalty"], ".2f"),
        )
        for record in records
    ]
    first = records[0]
    where = (
        "no returns: the environment is not available"
        if first["return"] is None
        else f"return ± its 95% interval from {first['episodes']} episodes"
    )
    print_title(f"{shorten_reference(first['dataset'])}, {where}")
    print_table(
        (
            "method",
            "λ",
            "seed",
            "return (last)",
            "score",
            "best return",
            "critic value",
            "mean penalty",
        ),
        rows,
    )


def evaluate(
    run: Positional[Path],
    episodes: int = 10,
    method: str | None = None,
    seed: int | None = None,
    which: Literal["last", "best"] = "last",
    all: bool = False,
    environment: str | None = None,
    json: bool = False,
    video: Path | None = None,
) -> None:
    """Run trained policies in the real environment, on all cores.

    Actions are deterministic, and every evaluation uses the same environment seeds.

    Args:
        run: The folder of `gelato train`.
        episodes: Episodes per policy.
        method: Method to evaluate. Default: the policy that `gelato select` chose, else all.
        seed: Seed to evaluate. Default: the policy that `gelato select` chose, else all.
        which: The last policies of training, or those with the best return during training.
        all: Evaluate every policy, also if one was selected.
        environment: Environment to use, such as `Pendulum-v1`. Default: the environment that
            recorded the data.
        json: Print one JSON object instead of a table.
        video: Also record an episode of the first policy in this file (.gif, or .mp4 with the
            extra `video`).
    """
    from gelato.errors import InputError
    from gelato.policy.video import check_video, write_video
    from gelato.progress import note
    from gelato.report.policy_table import show_return
    from gelato.tasks.environments import check_environment
    from gelato.training.policies import environment_for, evaluate_run, trained_policies

    if episodes < 1:
        raise InputError(f"--episodes {episodes}: must be at least 1")
    check_video(video)
    check_file(video)
    if environment is not None:
        check_environment(environment)
    if not all:
        method, seed = _use_selected(run, method, seed)
    records = evaluate_run(run, episodes, which, method, seed, environment=environment)
    if video is not None:
        first = trained_policies(run, which, method, seed, environment)[0]
        write_video(first.policy, environment_for(first), video)
        note(f"{video} written")
    if json:
        print_json({"run": str(run), "which": which, "records": records})
        return
    rows = [
        (
            str(r["method"]),
            str(r["seed"]),
            show_return(r),
            "-" if r["score"] is None else f"{r['score']:.1f}",
            f"{r['length']:,.0f}",
        )
        for r in records
    ]
    print_table(
        (f"{which} policies, {episodes} episodes", "seed", "return ± 95%", "score", "length"), rows
    )


def _use_selected(run: Path, method: str | None, seed: int | None) -> tuple[str | None, int | None]:
    """Return the selected policy if the user named none and there is one."""
    from gelato.progress import note
    from gelato.selection.select import find_selected

    if method is not None or seed is not None:
        return method, seed
    chosen = find_selected(run)
    if chosen is None:
        return None, None
    note(f"using the selected policy: {chosen['method']}, seed {chosen['seed']}")
    return str(chosen["method"]), int(chosen["seed"])


def table(
    runs: Positional[
        Annotated[tuple[Path, ...], arg(metavar="PATH [PATH ...]", help_behavior_hint="(required)")]
    ],
    format: Literal["md", "latex", "json"] = "md",
    out: Path | None = None,
) -> None:
    """Compare training runs: mean ± standard deviation over seeds, IQM with 95% intervals.

    Args:
        runs: Folders of `gelato train`, or JSON files of records.
        format: Markdown, LaTeX or JSON.
        out: Write to this file instead of standard output.
    """
    import sys
    from json import dumps

    from gelato.errors import InputError
    from gelato.report.policy_table import aggregate, as_text, gather, summarise_policies
    from gelato.runs.files import write_atomically

    if not runs:
        raise InputError("give at least one run folder")
    check_file(out)
    records = gather(runs)
    if format == "json":
        text = dumps({"cells": summarise_policies(records), "methods": aggregate(records)}) + "\n"
    else:
        text = as_text(records, format)
    if out is None:
        sys.stdout.write(text)
    else:
        with write_atomically(out) as partial:
            partial.write_text(text)


def export(
    run: Positional[Path],
    onnx: Path,
    method: str | None = None,
    seed: int | None = None,
    which: Literal["last", "best"] = "last",
    guard: bool = True,
    prototypes: int = 10_000,
    false_alarm_rate: float = 0.05,
    coverage: float = 0.9,
    fitted_to: str | None = None,
) -> None:
    """Export a policy and its guard as one ONNX graph.

    The graph maps an observation to the action, the penalty U, `trusted`, the predicted next state
    and its error bounds. onnxruntime checks it against the original before the file is written.

    Args:
        run: The folder of `gelato train`.
        onnx: The file to write.
        method: Method to export. Default: the policy that `gelato select` chose, else the first
            method.
        seed: Seed to export. Default: the policy that `gelato select` chose, else the first seed.
        which: The last policy of training, or the one with the best return during training.
        guard: Include the guard. A run without a latent model exports the policy alone.
        prototypes: Data points that the guard searches neighbours among.
        false_alarm_rate: Share of a new episode's steps that the guard may call not trusted.
        coverage: Share of a new episode's steps for which the error bound is to hold.
        fitted_to: New location of the training data, if it moved.
    """
    from gelato.cli.output import print_fields
    from gelato.errors import InputError
    from gelato.policy.onnx_export import export_guarded, export_onnx, measure_latency
    from gelato.progress import note
    from gelato.report.references import shorten_reference
    from gelato.training.policies import trained_policies

    if onnx.suffix != ".onnx":
        raise InputError(f"{onnx}: the file name must end in .onnx")
    if prototypes < 2:
        raise InputError(f"--prototypes {prototypes}: must be at least 2")
    check_file(onnx)
    method, seed = _use_selected(run, method, seed)
    chosen = trained_policies(run, which, method, seed)[0]
    metadata = {
        "method": chosen.method,
        "seed": str(chosen.seed),
        "which": which,
        "dataset": shorten_reference(chosen.dataset),
        "environment": chosen.environment or "unknown",
    }
    fields = dict(metadata)
    if guard and not _has_model(run):
        note(f"{run}: has no latent model, so the policy is exported without a guard")
        guard = False
    if guard:
        trust = _make_trust(run, chosen.seed, prototypes, coverage, false_alarm_rate, fitted_to)
        found = export_guarded(chosen.policy, trust, onnx, metadata)
        fields |= {
            "guard": f"{trust.points:,} prototypes, U up to {trust.limit:.2f} is trusted",
            "false alarms": f"at most {trust.false_alarm_rate:.1%} of a new episode's steps",
            "error bound": f"holds for {trust.bounds.coverage:.1%} of a new episode's steps",
            "largest difference": f"action {found.action:.1e}, U {found.penalty:.1e}",
        }
    else:
        difference = export_onnx(chosen.policy, onnx, metadata)
        fields["largest difference"] = f"{difference:.1e}"
    latency = measure_latency(onnx)
    fields["size"] = f"{onnx.stat().st_size / 1e6:.1f} MB"
    fields["a step on one core"] = (
        f"median {latency.median:.2f} ms, 99% {latency.high:.2f} ms "
        f"({latency.computing:.2f} ms of computing)"
    )
    print_fields(f"{onnx} written", fields)


def _has_model(run: Path) -> bool:
    from gelato.model.training import NoModelError, find_model

    try:
        find_model(run)
    except NoModelError:
        return False
    return True


def _make_trust(
    run: Path,
    seed: int,
    points: int,
    coverage: float,
    false_alarm_rate: float,
    fitted_to: str | None,
) -> "Trust":
    """Make the guard of a run's model, or say how to export without one."""
    from gelato.cli.model import load_fitted
    from gelato.uncertainty.trust import Trust

    try:
        fitted = load_fitted(run, fitted_to)
    except InputError as error:
        raise InputError(f"{error}. Use --no-guard to export the policy alone") from error
    return Trust(
        fitted, seed=seed, points=points, coverage=coverage, false_alarm_rate=false_alarm_rate
    )
