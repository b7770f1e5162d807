"""`gelato sweep`: many trainings in one folder, here or on a Ray cluster."""

import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from tyro.conf import Positional

from gelato.cli.output import print_json
from gelato.errors import InputError
from gelato.progress import note


def sweep(
    spec: Positional[Annotated[Path | None, tyro.conf.arg(metavar="[SPEC]")]] = None,
    *,
    run: Path,
    dataset: tuple[str, ...] = (),
    method: tuple[str, ...] = (),
    penalty_weight: tuple[float, ...] = (),
    real_fraction: tuple[float, ...] = (),
    penalty: str | None = None,
    seeds: int | None = None,
    first_seed: int | None = None,
    seeds_per_group: int | None = None,
    preset: Literal["default", "small"] | None = None,
    updates: int | None = None,
    evaluations: int | None = None,
    episodes: int | None = None,
    set: tuple[str, ...] = (),
    address: str | None = None,
    cores: int | None = None,
    gpus: float | None = None,
    scratch: Path | None = None,
    json: bool = False,
) -> None:
    """Train on many datasets, with many methods, penalty weights and seeds.

    Policies that share a model and a program train together in one group. Groups run one after
    another, or on a Ray cluster with `--address`. If the sweep is interrupted, repeat the command:
    finished groups are kept and the others continue from their checkpoints. `table`, `select` and
    `report` read the folder of a sweep.

    Args:
        spec: Python file that defines `sweep = Sweep(...)`. Default: the options below.
        run: Folder of the sweep.
        dataset: One or more references to data.
        method: One or more methods (`gelato methods` explains them). Default: gelato.
        penalty_weight: One or more penalty weights λ. Default: the grid of the preset.
        real_fraction: One or more fractions of real data in each batch. Default: the grid of the
            preset, or the preset's value if penalty weights are given.
        penalty: Penalty on imagined steps. Default: the penalty of each method.
        seeds: Number of seeds. Default: 1.
        first_seed: First seed. Default: 0.
        seeds_per_group: Maximum number of seeds in a group. More machines can work on smaller
            groups at once. Default: all.
        preset: `default` or `small`, as for `gelato train`. Default: default.
        updates: Updates of each policy. Default: those of the preset.
        evaluations: Evaluations in the real environment. Default: those of the preset.
        episodes: Episodes per evaluation. Default: those of the preset.
        set: Any other setting as NAME=VALUE.
        address: A Ray cluster: auto (the one of this machine), HOST:PORT, or local (a new one on
            this machine). Default: no Ray; groups run one after another.
        cores: Cores of each group. Default: all cores without Ray. With Ray: one core, or with
            GPUs the cores of the node divided by its number of GPUs, for each GPU.
        gpus: GPUs of each group; 0.25 puts four groups on one GPU. Default: 1 if the cluster has
            GPUs.
        scratch: Folder on every node's own disk. Groups run there and are copied to the run folder
            when they are finished. Default: groups run in the run folder if all nodes see it.
        json: Print one JSON object instead of a table.
    """
    from gelato.report.policy_table import as_text
    from gelato.sweep.run import run_sweep
    from gelato.sweep.spec import FieldError, Sweep, SweepSource, read_sweep

    options: dict[str, Any] = {
        "datasets": dataset,
        "methods": method,
        "penalty_weights": penalty_weight,
        "real_fractions": real_fraction,
        "penalty": penalty,
        "seeds": seeds,
        "first_seed": first_seed,
        "seeds_per_group": seeds_per_group,
        "preset": preset,
        "updates": updates,
        "evaluations": evaluations,
        "episodes": episodes,
        "settings": set,
    }
    given = {name: value for name, value in options.items() if value not in (None, ())}
    source = SweepSource()
    if spec is not None:
        if given:
            raise InputError(
                f"give either {spec} or options for the sweep, not both; put {min(given)} into "
                "the file"
            )
        chosen, source = read_sweep(spec)
    else:
        if not dataset:
            raise InputError("give a specification, or --dataset REF. See `gelato sweep --help`")
        try:
            chosen = Sweep(**given)
        except FieldError as error:
            raise source.locate(error) from error
    records = run_sweep(
        chosen, run, address=address, cores=cores, gpus=gpus, scratch=scratch, source=source
    )
    if json:
        print_json({"run": str(run), "records": records})
        return
    sys.stdout.write(as_text(records, "md"))
    note(f"{run}: read it with `gelato table`, `gelato select` and `gelato report`")
