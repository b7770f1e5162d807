"""The section about how to make the run again."""

import json
from collections.abc import Mapping
from typing import Any

from gelato.report.page.collect.source import Source
from gelato.report.page.records import Reproduction


def collect_reproduction(source: Source) -> Reproduction:
    """Describe commands, versions, fingerprint and all settings of a run."""
    described = source.description
    settings: dict[str, str] = {}
    left_out = ("format", "kind", "data", "fingerprint", "versions", "methods", "shape")
    for name, value in described.items():
        if name not in left_out:
            settings |= flatten(value, name)
    for method in described.get("methods", []):
        settings |= flatten(method, method["name"])
    return Reproduction(
        commands=tuple(write_commands(source)),
        folder=str(source.folder),
        fingerprint=str(described["fingerprint"]),
        versions={name: str(value) for name, value in described.get("versions", {}).items()},
        settings=settings,
    )


def flatten(value: Any, name: str) -> dict[str, str]:
    """Return nested settings with dotted names, such as `fit.model.decoders`."""
    if isinstance(value, Mapping):
        found: dict[str, str] = {}
        for key, each in value.items():
            found |= flatten(each, f"{name}.{key}")
        return found
    return {name: value if isinstance(value, str) else json.dumps(value)}


def write_commands(source: Source) -> list[str]:
    """Write the commands that make the run, from its recorded settings."""
    described, folder = source.description, source.folder
    reference = described["data"]["reference"]
    seeds = described["seeds"]
    counted = f"--seeds {len(seeds)}" + (f" --first-seed {seeds[0]}" if seeds[0] else "")
    if not source.is_training:
        config = described["config"]
        return [
            f"gelato model fit {reference} --run {folder} {counted} --updates {config['updates']}",
            f"gelato report {folder}",
        ]
    methods = described["methods"]
    families = list(dict.fromkeys(method["name"].split()[0] for method in methods))
    weights = sorted({method["penalty_weight"] for method in methods if method["penalty_weight"]})
    fractions = sorted({method["real_fraction"] for method in methods})
    command = f"gelato train {reference} --run {folder} --method {' '.join(families)} {counted}"
    if weights:
        command += f" --penalty-weight {' '.join(f'{weight:g}' for weight in weights)}"
        command += f" --real-fraction {' '.join(f'{fraction:g}' for fraction in fractions)}"
    updates = methods[0]["agent"].get("updates")
    if updates:
        command += f" --updates {updates}"
    return [command, f"gelato select {folder}", f"gelato report {folder}"]
