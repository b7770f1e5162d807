"""`gelato bench`: measure how fast and how exact the pieces are on this machine."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from gelato.cli.output import check_records, print_json, print_table
from gelato.cli.parsing import Commands

bench = Commands()
KEYS = ("device", "dimension", "range", "solver")


@bench.command
def geometry(
    json: bool = False,
    dimensions: tuple[int, ...] = (2, 10, 35),
    results: Path | None = None,
    batch: int | None = None,
    train_steps: int = 600,
    search: bool = True,
) -> None:
    """Geodesics per second and error of their lengths, for every solver and, where installed, for stochman.

    Near pairs are neighbours among 20,000 points, far pairs are drawn at random. Errors are relative to a converged
    solver's lengths. stochman, on a CPU only, wants `pip install 'gelato-rl[bench]'`.

    Args:
        json: Print one JSON object and nothing else.
        dimensions: Latent dimensions to measure.
        results: Also write the records into this file, in place of older ones of the same device.
        batch: Pairs solved at once; 256 on a CPU, 65,536 on an accelerator.
        train_steps: Steps that the decoder is trained for.
        search: Also time the exact search for nearest neighbours.
    """
    from gelato.errors import InputError

    wrong = [f"--{name} {value}" for name, value in _sizes(dimensions, batch, train_steps) if value < 1]
    if not dimensions or wrong:
        raise InputError(f"{wrong[0] if wrong else '--dimensions'} must be at least 1")
    check_records(results)
    records = _measured(dimensions, batch, train_steps, search)
    if results is not None:
        from gelato.results import merge_records

        merge_records(results, records, KEYS)
    if json:
        print_json({"records": records})
    else:
        _print_records(records)


def _sizes(dimensions: Iterable[int], batch: int | None, train_steps: int) -> list[tuple[str, int]]:
    sizes = [("dimensions", dimension) for dimension in dimensions]
    return [*sizes, ("batch", 1 if batch is None else batch), ("train-steps", train_steps)]


def _measured(dimensions: tuple[int, ...], batch: int | None, train_steps: int, search: bool) -> list[dict[str, Any]]:
    from gelato.geometry.benchmark import measure, steps
    from gelato.progress import progress

    with progress("measuring", steps(dimensions, search)) as advance:
        return measure(dimensions, batch, train_steps, search, advance)


def _print_records(records: list[dict[str, Any]]) -> None:
    columns = ("solver", "d", "range", "per second", "median error", "95% error", "× stochman")
    rows = [
        (
            record["solver"],
            str(record["dimension"]),
            record["range"],
            f"{record['per_second']:,.1f}",
            f"{record['median_error']:.3%}",
            f"{record['p95_error']:.3%}",
            str(record.get("times_stochman", "")),
        )
        for record in records
    ]
    print_table((f"{columns[0]} ({records[0]['device']})", *columns[1:]), rows)
