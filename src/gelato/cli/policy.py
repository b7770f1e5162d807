"""`gelato train`, `evaluate`, `table`, `export`: policies from logged data."""

from pathlib import Path
from typing import Any, Literal

from tyro.conf import Positional

from gelato.cli.data import Ref
from gelato.cli.output import print_json, print_table

Names = Literal["gelato", "gelato-l2", "gelato-ensemble", "mopo", "mbpo", "sac", "bc"]


def train(
    reference: Positional[Ref],
    run: Path,
    method: tuple[Names, ...] = ("gelato",),
    seeds: int = 1,
    first_seed: int = 0,
    preset: Literal["default", "small"] = "default",
    transitions: int | None = None,
    penalty: str | None = None,
    penalty_weight: float | None = None,
    updates: int | None = None,
    model_updates: int | None = None,
    evaluations: int | None = None,
    episodes: int | None = None,
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
        penalty: Another penalty for gelato (`gelato uncertainty --help` names them).
        penalty_weight: λ, in units of reward for a penalty of 1 (that of pairs clearly foreign to the data).
        updates: Updates of the policy.
        model_updates: Updates of the model's first phase; the second gets a fifth of it.
        evaluations: How often to evaluate on the way.
        episodes: Episodes of an evaluation.
        json: Print one JSON object and nothing else.
    """
    from gelato.data.reference import load
    from gelato.methods import method_for, train_preset
    from gelato.pipeline import train as train_policies

    dataset = load(reference if transitions is None else f"{reference},transitions={transitions}")
    config = _changed(train_preset(preset, dataset), updates, model_updates, evaluations, episodes)
    chosen = [method_for(name, dataset, penalty, penalty_weight) for name in dict.fromkeys(method)]
    records = train_policies(dataset, run, chosen, seeds=seeds, first_seed=first_seed, config=config)
    if json:
        print_json({"run": str(run), "records": records})
    else:
        _print_records(records)


def _changed(
    config: Any, updates: int | None, model_updates: int | None, evaluations: int | None, episodes: int | None
) -> Any:
    from dataclasses import replace

    if updates is not None:
        config = replace(config, sac=replace(config.sac, updates=updates, epoch=min(config.sac.epoch, updates)))
    if model_updates is not None:
        model = replace(config.model, updates=model_updates, variance_updates=max(1, model_updates // 5))
        config = replace(config, model=model, ensemble=replace(config.ensemble, updates=model_updates))
    given = {"evaluations": evaluations, "episodes": episodes}
    return replace(config, **{name: value for name, value in given.items() if value is not None})


def _print_records(records: list[dict[str, Any]]) -> None:
    def number(value: Any, form: str = ",.0f") -> str:
        return "-" if value is None else f"{value:{form}}"

    rows = [
        (
            str(record["method"]),
            str(record["seed"]),
            number(record["return"]),
            number(record["score"], ".1f"),
            number(record["best_return"]),
            number(record["initial_value"]),
            number(record["penalty"], ".2f"),
        )
        for record in records
    ]
    title = f"{records[0]['dataset']}, {records[0]['episodes']} episodes"
    print_table((title, "seed", "return (last)", "score", "best on the way", "value (model)", "U along it"), rows)
