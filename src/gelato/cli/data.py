"""`gelato data`: see, make and import logged transitions."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro
from tyro.conf import Positional

from gelato.cli.arguments import Ref, RewardFile, add_reward
from gelato.cli.output import check_picture, print_fields, print_json, print_table, print_title
from gelato.cli.parsing import Commands
from gelato.progress import say

if TYPE_CHECKING:
    from gelato.data.transitions import Dataset

data = Commands()


@data.command(name="list")
def list_() -> None:
    """List the named datasets, the sizes that already exist here, and the other data sources."""
    from gelato.data import list_sources, store
    from gelato.data.named import Named, list_made
    from gelato.data.recipes import RECIPES
    from gelato.data.sources import NAMED

    rows = []
    for recipe in RECIPES.values():
        default = Named(recipe, recipe.size)
        made = ([default] if store.exists(default.dataset_id) else []) + list_made(recipe)
        sizes = ", ".join(f"{named.size:,} (seed {named.seed})" for named in made)
        size = f"{recipe.size:,}" + (" episodes" if recipe.unit == "episodes" else "")
        rows.append((recipe.name, size, recipe.description, sizes or "-"))
    print_table(("name", "default size", "policy", "existing sizes"), rows)
    others = []
    for source in list_sources().values():
        if source.name != NAMED:
            target = "PATH" if source.is_path else "ID"
            options = ", ".join(source.known_options)
            others.append((f"{source.name}:{target}", source.help, options))
    print_table(("other sources", "data", "options"), others)


@data.command
def make(
    name: Positional[Annotated[str, tyro.conf.arg(metavar="NAME")]],
    transitions: int | None = None,
    episodes: int | None = None,
    seed: int = 0,
    workers: int | None = None,
) -> None:
    """Generate a named dataset in the real simulator and store it with Minari.

    The same name, seed and size give the same transitions, for any number of workers.

    Args:
        name: A name from `gelato data list`.
        transitions: Number of transitions. Default: the size that `gelato data list` shows.
        episodes: Number of episodes, for the driving datasets.
        seed: Seed of the simulator and the policies.
        workers: Processes to run in parallel. Default: one per core.
    """
    from gelato.data.named import make_named, resolve_named
    from gelato.data.sources import NAMED, Reference
    from gelato.errors import InputError

    if workers is not None and workers < 1:
        raise InputError(f"--workers {workers}: must be at least 1")
    given = {"transitions": transitions, "episodes": episodes, "seed": seed}
    options = {option: str(value) for option, value in given.items() if value is not None}
    named = resolve_named(Reference(NAMED, name, options))
    made = make_named(named, workers=workers)
    print_fields(
        f"{named.reference} {'generated' if made else 'already exists'}",
        {"Minari id": named.dataset_id, named.recipe.unit: f"{named.size:,}", "seed": str(seed)},
    )


@data.command
def info(
    reference: Positional[Ref],
    reward: RewardFile = None,
    json: bool = False,
    plot: Path | None = None,
) -> None:
    """Summarise a dataset: columns, counts, returns, value ranges, first rows, warnings.

    A named dataset that does not exist yet is generated first, which can take minutes.

    Args:
        reference: The data.
        json: Print one JSON object and nothing else.
        plot: Also draw histograms and the states' distribution into this file (.png, .pdf or .svg).
    """
    from gelato.data.quality import find_warnings
    from gelato.data.summary import list_rows, summarise
    from gelato.report.references import shorten_reference

    check_picture(plot)
    dataset = _load_to_inspect(add_reward(reference, reward))
    summary = {**summarise(dataset), "warnings": find_warnings(dataset)}
    if plot is not None:
        from gelato.report.data_figure import draw_dataset

        draw_dataset(dataset, plot)
    if json:
        print_json(summary)
    else:
        print_fields(shorten_reference(summary["reference"]), _format_summary(summary))
        print_table(*list_rows(dataset))
        for warning in summary["warnings"]:
            say(f"warning: {warning}")


@data.command(name="check")
def check_dataset(
    reference: Positional[Ref], reward: RewardFile = None, json: bool = False
) -> None:
    """Judge a dataset before training: is it enough, is it varied, what can a model learn?

    Every topic gets a verdict (good, thin or missing), what was measured, and what to do. The
    predictions of the next state and reward are tested on a fifth of the episodes: a model should
    do better than least squares.

    Args:
        reference: The data.
        json: Print one JSON object and nothing else.
    """
    from gelato.data.quality import find_warnings, judge_data
    from gelato.report.references import shorten_reference

    dataset = _load_to_inspect(add_reward(reference, reward))
    findings, warnings = judge_data(dataset), find_warnings(dataset)
    if json:
        described = [finding.describe() for finding in findings]
        print_json({"reference": dataset.reference, "findings": described, "warnings": warnings})
        return
    print_title(shorten_reference(dataset.reference))
    rows = [(each.topic, each.verdict, each.measured) for each in findings]
    print_table(("topic", "verdict", "measured"), rows)
    for finding in findings:
        if finding.advice:
            say(f"{finding.topic}: {finding.advice}")
    for warning in warnings:
        say(f"warning: {warning}")


def _load_to_inspect(reference: str) -> "Dataset":
    """Load data; rewards that are missing are a warning here and an error in other commands."""
    from gelato.data.fields import MissingRewardsError
    from gelato.data.reference import load

    try:
        return load(reference)
    except MissingRewardsError:
        return load(f"{reference},rewards=none")


@data.command(name="import")
def import_(
    reference: Positional[Ref],
    name: str | None = None,
    columns: Path | None = None,
    reward: RewardFile = None,
) -> None:
    """Copy a dataset into Minari's store, or into a column store for data larger than memory.

    Any Minari program can open a dataset of Minari's store. Minari stores the successor of every
    step, so steps without one are skipped. A column store keeps all steps. It is written in blocks;
    after an interruption, the same command continues.

    Args:
        reference: The data.
        name: The Minari id to store it under, such as mine/log-v0.
        columns: The folder of the new column store.
    """
    from gelato.data import store
    from gelato.data.importing import import_columns
    from gelato.data.reference import load
    from gelato.errors import InputError

    if (name is None) == (columns is None):
        raise InputError("give either --name ID or --columns PATH")
    if columns is not None:
        stored = import_columns(add_reward(reference, reward), columns)
        print_fields(
            f"{reference} imported",
            {
                "reference": stored.reference,
                "transitions": f"{len(stored.transitions):,}",
                "fingerprint": stored.transitions.fingerprint(),
            },
        )
        return
    assert name is not None
    dataset_id = store.check_id(name)
    reference = add_reward(reference, reward)
    dataset = load(reference)
    written = store.write_transitions(
        dataset_id, dataset, description=f"Imported from {Path(reference).name}."
    )
    left_out = len(dataset.transitions) - len(written)
    ends_lost = int(dataset.transitions.terminated.sum() - written.terminated.sum())
    print_fields(
        f"{reference} imported",
        {
            "reference": f"minari:{dataset_id}",
            "transitions": f"{len(written):,}",
            "skipped": f"{left_out:,} steps without a successor; {ends_lost:,} of these were "
            "terminations",
        },
    )


def _describe_environment(environment: str | None) -> str:
    import gymnasium

    from gelato.tasks import find_task

    if environment is None:
        return "unknown"
    if environment in gymnasium.registry or find_task(environment) is not None:
        return environment
    return f"{environment} (not registered in Gymnasium, so policies cannot be evaluated)"


def _format_summary(summary: dict[str, Any]) -> dict[str, str]:
    def format_statistics(name: str, form: str) -> str:
        mean, std = summary[f"{name}_mean"], summary[f"{name}_std"]
        low, high = summary[f"{name}_min"], summary[f"{name}_max"]
        return f"{mean:{form}} ± {std:{form}} (from {low:{form}} to {high:{form}})"

    score, space = summary["normalised_score"], summary["actions"]
    columns = {f"{field} =": ", ".join(names) for field, names in summary["columns"].items()}
    fields = columns | {
        "environment": _describe_environment(summary["environment"]),
        "transitions": f"{summary['transitions']:,} in {summary['episodes']:,} episodes",
        "without successor": f"{summary['without_successor']:,}",
        "episodes end by": f"{summary['terminations']:,} terminations, "
        f"{summary['truncations']:,} truncations",
        "length": format_statistics("length", ",.1f"),
        "return": format_statistics(
            "return", ",.1f" if abs(summary["return_mean"]) >= 1 else ".3g"
        ),
        "normalised score": "no reference returns for this environment"
        if score is None
        else f"{score:.1f}",
        "reward": "{:.4g} to {:.4g}".format(*summary["reward_range"]),
        "observations": f"shape {tuple(summary['observation_shape'])}, "
        f"{min(summary['state_low']):.4g} to {max(summary['state_high']):.4g}",
    }
    if "discrete" in space:
        counts = ", ".join(f"{count:,}" for count in summary["action_counts"])
        fields["actions"] = f"{space['discrete']} discrete; counts: {counts}"
    else:
        low, high = summary["action_range"]
        bounds = zip(space["low"], space["high"], strict=True)
        box = ", ".join(
            f"[{'-∞' if a is None else a}, {'∞' if b is None else b}]" for a, b in bounds
        )
        fields["actions"] = (
            f"{len(low)} continuous in {box}; data from {min(low):.4g} to {max(high):.4g}"
        )
    return fields | {
        "memory": f"{summary['bytes'] / 1e6:,.1f} MB",
        "fingerprint": summary["fingerprint"],
    }
