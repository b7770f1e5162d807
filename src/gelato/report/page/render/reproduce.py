"""The section about how to make the run again."""

from gelato.report.page.records import RunReport
from gelato.report.page.render.html import Html, element, paragraph, section, table

_LEAD = "Everything that is needed to make this run again and to check this page."


def render_reproduction(run: RunReport) -> Html:
    """Write commands, versions, fingerprint and settings."""
    found = run.reproduce
    commands = "\n".join(found.commands)
    block = element(
        "div",
        element("pre", element("code", commands), tabindex="0", aria_label="commands"),
        element("button", "Copy", type="button", class_="copy", data_copy=commands),
        class_="code",
    )
    versions = table(
        "Versions that made the run", ("package", "version"), list(found.versions.items())
    )
    settings = element(
        "details",
        element("summary", f"All {len(found.settings)} settings"),
        table("Settings of the run", ("setting", "value"), list(found.settings.items())),
    )
    identity = table(
        "Identity",
        ("what", "value"),
        [
            ("run folder", found.folder),
            ("data", run.dataset),
            ("fingerprint of the data", element("code", found.fingerprint)),
            ("environment", run.environment or "none recorded"),
        ],
    )
    origin = found.problem or (
        "The commands are written from the recorded settings. They use a new folder, because a "
        "finished run is not trained again."
    )
    note = paragraph(
        f"{origin} The file with the same name and the ending .json holds all numbers of this page."
    )
    return section(
        "reproduce",
        "Reproduce",
        _LEAD,
        block,
        note,
        element("div", identity, versions, class_="two"),
        settings,
    )
