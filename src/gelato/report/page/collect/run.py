"""Collect all sections of a run, or of several runs for a comparison."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from gelato.data.transitions import Dataset
from gelato.errors import InputError
from gelato.report.page.collect.data import collect_data
from gelato.report.page.collect.map import MapPoints, collect_map
from gelato.report.page.collect.model import collect_model
from gelato.report.page.collect.paths import collect_paths
from gelato.report.page.collect.policies import collect_policies
from gelato.report.page.collect.reproduce import collect_reproduction
from gelato.report.page.collect.source import Source, open_source
from gelato.report.page.collect.trust import collect_trust
from gelato.report.page.collect.verdict import collect_verdict
from gelato.report.page.records import (
    Comparison,
    ModelSection,
    PathsSection,
    RunReport,
    TrustSection,
)
from gelato.report.references import shorten_reference
from gelato.uncertainty.trust import check_spaces


def collect_run(
    run: Path | str, new_log: Dataset | None = None, fitted_to: str | None = None
) -> RunReport:
    """Collect every section of one run."""
    source = open_source(run, fitted_to)
    if new_log is not None:
        if source.fitted is None:
            raise InputError(f"{run}: cannot judge {new_log.reference}. {source.missing['model']}")
        check_spaces(source.fitted, new_log)
    points = collect_map(source, new_log)
    trust = collect_trust(source, points, new_log)
    model = collect_model(source)
    paths = collect_paths(source, points)
    return replace(
        _collect_summary(source, points, trust, model, paths),
        model=model,
        map=None if points is None else points.section,
        paths=paths,
        trust=trust,
    )


def compare_runs(runs: Sequence[Path | str], fitted_to: str | None = None) -> Comparison:
    """Collect what is compared between runs: data, verdicts, policies and settings."""
    reports = [_collect_summary(open_source(run, fitted_to)) for run in runs]
    fingerprints = {report.reproduce.fingerprint for report in reports}
    return Comparison(
        tuple(reports),
        tuple(list_differences([report.reproduce.settings for report in reports])),
        len(fingerprints) == 1,
    )


def list_differences(settings: Sequence[dict[str, str]]) -> list[tuple[str, ...]]:
    """List the settings that differ: the name, and the value of each run, or a dash."""
    names = dict.fromkeys(name for own in settings for name in own)
    rows = []
    for name in names:
        values = [own.get(name, "–") for own in settings]
        if len(set(values)) > 1:
            rows.append((name, *values))
    return rows


def _collect_summary(
    source: Source,
    points: MapPoints | None = None,
    trust: TrustSection | None = None,
    model: ModelSection | None = None,
    paths: PathsSection | None = None,
) -> RunReport:
    """Collect the sections that need no model: verdict, data, policies, and how to reproduce."""
    recorded = source.description["data"]
    data = None if source.dataset is None else collect_data(source.dataset)
    return RunReport(
        name=source.folder.resolve().name,
        kind=source.description["kind"],
        dataset=shorten_reference(recorded["reference"]),
        environment=recorded["environment"],
        verdict=collect_verdict(source, data, points, trust, model, paths),
        data=data,
        policies=collect_policies(source),
        reproduce=collect_reproduction(source),
        missing=source.missing,
    )
