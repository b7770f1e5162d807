"""The data section."""

from collections.abc import Sequence

from gelato.report.page.records import Column, DataSection, RunReport
from gelato.report.page.render.html import (
    Html,
    element,
    figure,
    list_items,
    section,
    table,
    tile,
    tiles,
)
from gelato.report.page.render.numbers import count_noun, write_count, write_number, write_share
from gelato.report.page.render.pictures import draw_histogram
from gelato.report.page.render.verdict import render_missing

_LEAD = "What was recorded, how good it was, and which part of the ranges it covers."


def render_data(run: RunReport) -> Html:
    """Write what is known about the log."""
    data = run.data
    if data is None:
        missing = render_missing(run.missing, "data", "The data cannot be read.")
        return section("data", "Data", _LEAD, missing)
    remarks = list_items(data.remarks) or element("p", "Nothing suspicious was found.")
    children = [
        _render_tiles(data),
        element(
            "div",
            _returns_figure(data),
            _lengths_figure(data),
            class_="two",
        ),
        element("h3", "Suspicious"),
        remarks,
        _columns_table("States", data.states, data.columns),
        _columns_table("Actions", data.actions, len(data.actions)),
    ]
    return section("data", "Data", _LEAD, *children)


def _render_tiles(data: DataSection) -> Html:
    summary = data.summary
    score = summary["normalised_score"]
    return tiles(
        tile("Steps", write_count(summary["transitions"])),
        tile("Episodes", write_count(summary["episodes"])),
        tile(
            "Mean return",
            write_number(summary["return_mean"]),
            f"{write_number(summary['return_min'])} to {write_number(summary['return_max'])}"
            + ("" if score is None else f"; score {write_number(score)} (0 random, 100 expert)"),
        ),
        tile(
            "Steps per episode",
            write_number(summary["length_mean"]),
            f"{summary['length_min']:,} to {summary['length_max']:,}",
        ),
        tile(
            "Terminated",
            write_share(summary["terminations"] / summary["episodes"]),
            f"{summary['terminations']:,} episodes ended, {summary['truncations']:,} cut off",
        ),
        tile(
            "State columns",
            write_count(data.columns),
            count_noun(len(data.actions), "action column"),
        ),
    )


def _returns_figure(data: DataSection) -> Html:
    summary = data.summary
    return figure(
        "returns",
        "Returns of the logged episodes",
        "Height is the number of episodes.",
        "A policy can only be shown to be better if it beats the mean of these.",
        f"Mean {write_number(summary['return_mean'])}, standard deviation "
        f"{write_number(summary['return_std'])}, from {write_number(summary['return_min'])} to "
        f"{write_number(summary['return_max'])}.",
    )


def _lengths_figure(data: DataSection) -> Html:
    summary = data.summary
    return figure(
        "lengths",
        "Lengths of the logged episodes",
        "Height is the number of episodes.",
        "Returns are estimated over as many steps as the longest of these has.",
        f"Mean {write_number(summary['length_mean'])} steps, from {summary['length_min']} to "
        f"{summary['length_max']}.",
    )


def _columns_table(name: str, columns: Sequence[Column], total: int) -> Html:
    rows = []
    for column in columns:
        picture = draw_histogram(
            column.histogram,
            f"histogram of {column.name} from {write_number(column.low)} to "
            f"{write_number(column.high)}",
        )
        rows.append(
            (
                column.name,
                picture,
                write_number(column.low),
                write_number(column.median),
                write_number(column.high),
                write_share(column.coverage),
                column.remark or "",
            )
        )
    caption = f"{name}: distribution and range of each column"
    if total > len(columns):
        caption += f" (the {len(columns)} of {total:,} columns that vary most)"
    caption += (
        ". Covered: the share of the parts that hold data if the range is cut into equal parts"
    )
    heads = ("column", "distribution", "lowest", "median", "highest", "covered", "remark")
    return table(caption, heads, rows, class_="numbers")
