"""The section about how to make the run again."""

from gelato.report.page.collect.commands import find_unnamed, flatten, write_commands
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
        problem=_find_problem(source),
    )


def _find_problem(source: Source) -> str | None:
    """Say why the commands do not make the same run, if they do not."""
    unnamed = find_unnamed(source)
    if unnamed:
        return f"A Python program made {', '.join(unnamed)}; the command line does not know it."
    if source.dataset is None:
        return (
            "The data cannot be read, so the commands lack the settings that differ from the "
            "defaults. The list below has all settings."
        )
    return None
