"""The whole page: the frame with style, sections, records and programs in one file."""

from collections.abc import Sequence
from importlib import resources
from string import Template
from typing import Any

from gelato.errors import import_extra
from gelato.report.page.records import Comparison, RunReport, to_plain
from gelato.report.page.render.comparison import render_comparison
from gelato.report.page.render.data import render_data
from gelato.report.page.render.html import Html, element, embed_json, escape, join
from gelato.report.page.render.map import render_map
from gelato.report.page.render.model import render_model
from gelato.report.page.render.policies import render_policies
from gelato.report.page.render.reproduce import render_reproduction
from gelato.report.page.render.trust import render_trust
from gelato.report.page.render.verdict import describe_run, render_verdict
from gelato.report.page.render.words import render_words

_STYLES = ("base.css", "figures.css", "tables.css", "media.css")
_SCRIPTS = ("helpers.js", "figures.js", "policy_figures.js", "map.js", "page.js")
_SECTIONS = {
    "verdict": ("Verdict", render_verdict),
    "data": ("Data", render_data),
    "model": ("Model", render_model),
    "map": ("Map", render_map),
    "policies": ("Policies", render_policies),
    "trust": ("Trust", render_trust),
    "reproduce": ("Reproduce", render_reproduction),
    "words": ("Words", render_words),
}
_COMPARED = {
    "verdicts": "Verdicts",
    "settings": "Settings",
    "returns": "Returns",
    "data": "Data",
    "reproduce": "Reproduce",
}


def read_plotly() -> str:
    """Return the program of Plotly; an error names the extra that installs it."""
    offline = import_extra("plotly.offline", "report")
    program: str = offline.get_plotlyjs()
    return program


def render_page(report: RunReport | Comparison) -> str:
    """Write the page of one run or of a comparison."""
    if isinstance(report, Comparison):
        names = ", ".join(run.name for run in report.runs)
        title, facts = f"{len(report.runs)} runs compared", element("p", names, class_="facts")
        links: dict[str, str] = dict(_COMPARED)
        body = render_comparison(report)
    else:
        title, facts = f"Run {report.name}", describe_run(report)
        links = {name: label for name, (label, _) in _SECTIONS.items()}
        body = join(render(report) for _, render in _SECTIONS.values())
    return _fill_frame(title, facts, links, body, to_plain(report))


def _fill_frame(
    title: str, facts: Html, links: dict[str, str], body: Html, records: dict[str, Any]
) -> str:
    listed = [element("li", element("a", label, href=f"#{name}")) for name, label in links.items()]
    plotly = read_plotly()
    return Template(_read("page.html")).substitute(
        title=escape(title),
        facts=facts,
        style=_join(_STYLES),
        theme=_read("theme.js"),
        links=join(listed),
        body=body,
        records=embed_json(records),
        plotly=plotly,
        script=_join(_SCRIPTS),
    )


def _join(names: Sequence[str]) -> str:
    """Read several files of the package as one text."""
    return "\n".join(_read(name) for name in names)


def _read(name: str) -> str:
    """Read a file that is part of the package."""
    return (resources.files("gelato.report.page") / "assets" / name).read_text("utf-8")
