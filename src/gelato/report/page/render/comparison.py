"""The page that compares runs side by side."""

from collections.abc import Callable

from gelato.report.page.records import Comparison, Interval, RunReport
from gelato.report.page.render.html import Html, element, join, paragraph, section, table
from gelato.report.page.render.numbers import (
    MISSING,
    count_noun,
    write_interval,
    write_number,
    write_share,
)
from gelato.report.page.render.pictures import draw_intervals
from gelato.report.page.render.policies import render_curves
from gelato.report.page.render.verdict import render_card


def render_comparison(found: Comparison) -> Html:
    """Write all sections of the comparison."""
    return join(
        [
            _render_verdicts(found),
            _render_settings(found),
            _render_returns(found),
            _render_data(found),
            _render_commands(found),
        ]
    )


def _render_verdicts(found: Comparison) -> Html:
    cards = []
    for run in found.runs:
        cards.append(element("div", element("h3", run.name, class_="run"), render_card(run)))
    note = ""
    if not found.same_data:
        note = element(
            "div",
            element("strong", "Different data. "),
            "These runs learned from different data, so their returns may not be comparable.",
            class_="missing",
        )
    rows = []
    for run in found.runs:
        verdict = run.verdict
        rows.append(
            (
                run.name,
                verdict.word,
                f"{verdict.policy}, seed {verdict.seed}" if verdict.policy else MISSING,
                _write_return(verdict.estimate),
                _write_return(verdict.logged),
                write_share(verdict.outside_share),
                write_number(verdict.true_return),
            )
        )
    heads = (
        "run",
        "verdict",
        "policy",
        "estimated return",
        "return in the log",
        "steps outside the data",
        "measured return",
    )
    return section(
        "verdicts",
        "Verdicts",
        "Which policy of which run, if any.",
        note,
        element("div", *cards, class_="cards"),
        table("Verdicts side by side", heads, rows, class_="numbers"),
    )


def _write_return(interval: Interval | None) -> str:
    if interval is None:
        return MISSING
    if interval.low is None:
        return write_number(interval.value)
    return f"{write_number(interval.value)} ({write_interval(interval)})"


def _render_settings(found: Comparison) -> Html:
    heads = ("setting", *[run.name for run in found.runs])
    lead = f"{count_noun(len(found.settings), 'setting')} differ."
    body = paragraph("All settings are equal.")
    if found.settings:
        body = table("Settings that differ", heads, found.settings)
    return section("settings", "Settings", lead, body)


def _render_returns(found: Comparison) -> Html:
    shapes = ("circle", "square", "diamond")
    rows = []
    for number, run in enumerate(found.runs):
        if run.verdict.estimate is not None:
            rows.append((run.name, run.verdict.estimate, shapes[number % len(shapes)]))
    logged = next((run.verdict.logged for run in found.runs if run.verdict.logged), None)
    if rows and logged is not None and found.same_data:
        rows.insert(0, ("return in the log", logged, "square"))
    children: list[object] = []
    if rows:
        caption = element(
            "figcaption",
            element("strong", "Estimated returns. "),
            "Marks are means and bars are 95% intervals. ",
            element("span", "Intervals that overlap show no difference.", class_="meaning"),
        )
        picture = draw_intervals(rows, "Estimated returns with their 95% intervals")
        children.append(element("figure", picture, caption, class_="figure slim"))
    for number, run in enumerate(found.runs):
        if run.policies is not None and run.policies.curves:
            children += [element("h3", run.name), render_curves(run.policies, number)]
    lead = "What the policies earn."
    return section("returns", "Returns", lead, *(children or [paragraph("No run has policies.")]))


def _render_data(found: Comparison) -> Html:
    facts: tuple[tuple[str, Callable[[RunReport], str]], ...] = (
        ("data", lambda run: run.dataset),
        ("fingerprint", lambda run: run.reproduce.fingerprint),
        ("steps", lambda run: _write_fact(run, "transitions")),
        ("episodes", lambda run: _write_fact(run, "episodes")),
        ("mean return", lambda run: _write_fact(run, "return_mean")),
    )
    rows = [(name, *[write(run) for run in found.runs]) for name, write in facts]
    heads = ("fact", *[run.name for run in found.runs])
    return section("data", "Data", "What each run learned from.", table("Data", heads, rows))


def _write_fact(run: RunReport, name: str) -> str:
    return MISSING if run.data is None else write_number(run.data.summary[name])


def _render_commands(found: Comparison) -> Html:
    blocks = []
    for run in found.runs:
        code = element("code", "\n".join(run.reproduce.commands))
        blocks += [element("h3", run.name), element("pre", code, tabindex="0")]
    lead = "`gelato report RUN` writes the full page of one run."
    return section("reproduce", "Reproduce", lead, *blocks)
