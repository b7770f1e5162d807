"""`gelato train`, `evaluate`, `table`, `export`: policies from logged data."""

from pathlib import Path
from typing import Any, Literal

from tyro.conf import Positional

from gelato.cli.data import Ref
from gelato.cli.output import check_file, print_json, print_table, print_title

Names = Literal["gelato", "gelato-l2", "gelato-ensemble", "gelato-none", "mopo", "mbpo", "sac", "bc"]


def train(
    reference: Positional[Ref],
    run: Path,
    method: tuple[Names, ...] = ("gelato",),
    seeds: int = 1,
    first_seed: int = 0,
    preset: Literal["default", "small"] = "default",
    transitions: int | None = None,
    model: Path | None = None,
    penalty: str | None = None,
    penalty_weight: float | None = None,
    logged_share: float | None = None,
    doubt: float | None = None,
    updates: int | None = None,
    model_updates: int | None = None,
    evaluations: int | None = None,
    episodes: int | None = None,
    tensorboard: bool = False,
    json: bool = False,
) -> None:
    """Train policies from logged data: data made, model fitted or reused, policies trained and evaluated.

    Interrupted at any stage, the same command goes on from the last checkpoint. Methods that share a model, and all
    seeds, are trained by one program. The real environment is only used to report returns, never to choose anything;
    the report shows the last policy, and the best is kept beside it.

    Args:
        reference: The data.
        run: Folder to keep everything in.
        method: One or more methods; with several, models are fitted once and policies trained side by side.
        seeds: How many seeds, each with a model of its own.
        first_seed: The first seed.
        preset: `default` is what the tables are made with, `small` ends within minutes on a laptop.
        transitions: Make a named dataset of this size instead of its own.
        model: The folder of a latent model fitted before (`gelato model fit`), instead of fitting one here.
        penalty: Another penalty for gelato: transport, extrapolation, geodesic, euclidean, ensemble, aleatoric,
            forward, ambient or none.
        penalty_weight: λ, in units of reward for a penalty of 1 (that of pairs clearly foreign to the data). Unless
            told, by how good locomotion data is, and 4 otherwise; the report shows it.
        logged_share: The share of a batch that is logged, of methods that imagine the rest; unless told 0.05, on
            good locomotion data and in Four Rooms 0.5.
        doubt: How far imagined latent states are blurred, in units of the states' spread over the data; 0.01 unless
            told, 0 in Four Rooms and driving.
        updates: Updates of the policy, 300,000 unless told, with `small` 30,000; for driving, where PPO learns,
            imagined steps.
        model_updates: Updates of the model's first phase, of which the second gets a fifth, and of mopo's and mbpo's
            ensemble.
        evaluations: How often to evaluate on the way, 10 times unless told, with `small` 5.
        episodes: Episodes of an evaluation, 10 unless told, with `small` 5.
        tensorboard: Also write metrics for TensorBoard, below the run's folder (the extra `tensorboard`).
        json: Print one JSON object and nothing else.
    """
    from gelato.data.reference import load, parse
    from gelato.envs.simulate import check_named
    from gelato.errors import InputError
    from gelato.methods import method_for, train_preset
    from gelato.pipeline import train as train_policies

    if transitions is not None:
        if ":" in reference:
            raise InputError(f"--transitions makes a named dataset of that size; {reference} is as long as it is")
        reference = f"{reference},transitions={transitions}"
    check_named(parse(reference).options.get("environment"))
    dataset = load(reference)
    given = {"doubt": doubt, "evaluations": evaluations, "episodes": episodes}
    config = _changed(train_preset(preset, dataset), updates, model_updates, given)
    chosen = [method_for(name, dataset, penalty, penalty_weight, logged_share) for name in dict.fromkeys(method)]
    options = ("penalty", "penalty-weight", "logged-share", "model-updates", "model", "doubt")
    values = (penalty, penalty_weight, logged_share, model_updates, model, doubt)
    _refuse_idle([name for name, value in zip(options, values, strict=True) if value is not None], chosen, config)
    records = train_policies(
        dataset, run, chosen, seeds=seeds, first_seed=first_seed, config=config, model=model, tensorboard=tensorboard
    )
    if json:
        print_json({"run": str(run), "records": records})
    else:
        _print_records(records)


def _refuse_idle(options: list[str], methods: list[Any], config: Any) -> None:
    """Refuse an option that changes nothing for any of the methods."""
    from gelato.errors import InputError

    names = [method.name for method in methods]
    imagine, latent = any(m.real_share < 1 for m in methods), any(m.space == "latent" for m in methods)
    uses = {
        "penalty": ("gelato" in names, "gelato; the other methods have one of their own"),
        "penalty-weight": (any(m.penalty != "none" for m in methods), "methods that penalise"),
        "logged-share": (imagine and config.ppo is None, "methods that imagine and learn by SAC"),
        "model-updates": (imagine, "methods that imagine"),
        "model": (latent, "methods that imagine in the latent model"),
        "doubt": (latent, "methods that imagine in the latent model"),
    }
    for option in options:
        used, whom = uses[option]
        if not used:
            raise InputError(f"--{option} changes nothing for {', '.join(names)} here: it is for {whom}")


def _changed(config: Any, updates: int | None, model_updates: int | None, given: dict[str, Any]) -> Any:
    from dataclasses import replace

    if updates is not None:
        config = replace(config, sac=replace(config.sac, updates=updates, epoch=min(config.sac.epoch, updates)))
        if config.ppo is not None:
            config = replace(config, ppo=replace(config.ppo, total=updates))
    if model_updates is not None:
        model = replace(config.model, updates=model_updates, variance_updates=max(1, model_updates // 5))
        config = replace(config, model=model, ensemble=replace(config.ensemble, updates=model_updates))
    return replace(config, **{name: value for name, value in given.items() if value is not None})


def _print_records(records: list[dict[str, Any]]) -> None:
    from gelato.report.policy_table import return_form

    def number(value: Any, form: str | None = None) -> str:
        if value is None:
            return "-"
        return f"{value:{form or return_form(value)}}"

    rows = [
        (
            str(record["method"]),
            number(record["penalty_weight"] or None, "g"),
            str(record["seed"]),
            number(record["return"]),
            number(record["score"], ".1f"),
            number(record["best_return"]),
            number(record["initial_value"]),
            number(record["mean_penalty"], ".2f"),
        )
        for record in records
    ]
    first = records[0]
    where = "no environment to run them in" if first["return"] is None else f"{first['episodes']} episodes"
    print_title(f"{first['dataset']}, {where}")
    print_table(("method", "λ", "seed", "return (last)", "score", "best", "value (model)", "U along it"), rows)


def evaluate(
    run: Positional[Path],
    episodes: int = 10,
    method: str | None = None,
    seed: int | None = None,
    which: Literal["last", "best"] = "last",
    environment: str | None = None,
    json: bool = False,
    video: Path | None = None,
) -> None:
    """Run trained policies in the real environment: deterministic actions, fixed seeds, on all cores.

    Args:
        run: The folder of `gelato train`.
        episodes: Episodes for each policy.
        method: Whose policies, all of the run's unless told.
        seed: Of which seed, all of them unless told.
        which: The last policies of training, or those with the best return on the way.
        environment: Where to run them, if not where the data says it was recorded (`Pendulum-v1`).
        json: Print one JSON object and nothing else.
        video: Also draw an episode of the first of them into this file (.gif, or .mp4 with the extra `video`).
    """
    from gelato.envs.simulate import check_named
    from gelato.errors import InputError
    from gelato.evaluation.video import check_video, write_video
    from gelato.progress import note
    from gelato.trained import environment_for, evaluate_run, trained_policies

    if episodes < 1:
        raise InputError(f"episodes is {episodes}; run at least one")
    check_video(video)
    check_file(video)
    check_named(environment)
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
            f"{r['return']:,.1f} ± {r['return_std']:,.1f}",
            "-" if r["score"] is None else f"{r['score']:.1f}",
            f"{r['length']:,.0f}",
        )
        for r in records
    ]
    print_table((f"{which} policies, {episodes} episodes", "seed", "return", "score", "length"), rows)


def table(
    runs: Positional[tuple[Path, ...]], format: Literal["md", "latex", "json"] = "md", out: Path | None = None
) -> None:
    """Put training runs side by side: mean ± std over seeds, IQM with 95% intervals, the paper's numbers beside.

    Args:
        runs: Folders of `gelato train`, or JSON files of records.
        format: Markdown, LaTeX or JSON.
        out: Write to this file instead of standard output.
    """
    import sys
    from json import dumps

    from gelato.errors import InputError
    from gelato.report.policy_table import aggregate, as_text, gather, summarise_policies
    from gelato.whole import whole_file

    if not runs:
        raise InputError("name at least one run's folder")
    check_file(out)
    records = gather(runs)
    if format == "json":
        text = dumps({"cells": summarise_policies(records), "methods": aggregate(records)}) + "\n"
    else:
        text = as_text(records, format)
    if out is None:
        sys.stdout.write(text)
    else:
        with whole_file(out) as partial:
            partial.write_text(text)


def export(
    run: Positional[Path],
    onnx: Path,
    method: str | None = None,
    seed: int | None = None,
    which: Literal["last", "best"] = "last",
) -> None:
    """Write encoder and policy as one ONNX graph, from observation to action, checked with onnxruntime.

    Args:
        run: The folder of `gelato train`.
        onnx: The file to write.
        method: Whose policy, the first in the run unless told.
        seed: Which seed, the first unless told.
        which: The last policy of training, or the one with the best return on the way.
    """
    from gelato.cli.output import print_fields
    from gelato.errors import InputError
    from gelato.evaluation.onnx_export import export_onnx
    from gelato.trained import trained_policies

    if onnx.suffix != ".onnx":
        raise InputError(f"{onnx}: a graph must end in .onnx")
    check_file(onnx)
    chosen = trained_policies(run, which, method, seed)[0]
    difference = export_onnx(chosen.policy, onnx)
    print_fields(
        f"{onnx} written",
        {"method": chosen.method, "seed": str(chosen.seed), "largest difference": f"{difference:.1e}"},
    )
