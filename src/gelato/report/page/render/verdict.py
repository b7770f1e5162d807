"""The verdict: the first thing that a reader sees."""

from gelato.report.page.records import Interval, RunReport, VerdictSection
from gelato.report.page.render.html import Html, element, join, list_items, paragraph, tile, tiles
from gelato.report.page.render.learned import describe_learning
from gelato.report.page.render.numbers import (
    MISSING,
    count_noun,
    write_interval,
    write_number,
    write_share,
)
from gelato.report.page.render.pictures import draw_intervals

# Word on the page, symbol and style of each verdict. The symbol and the word say it without colour.
_LOOKS = {
    "better than the data": ("Better than the data", "✓", "good"),
    "do not deploy": ("Do not deploy", "✕", "bad"),
    "not shown to be better": ("Not shown to be better", "?", "unsure"),
    "no verdict": ("No verdict yet", "…", "none"),
}


def render_verdict(run: RunReport) -> Html:
    """Write the decision, why it was made, and where the policy is not safe."""
    verdict = run.verdict
    word, symbol, style = _LOOKS.get(verdict.word, (verdict.word, "?", "unsure"))
    heading = element("h2", word, id="verdict-title")
    card = element(
        "div",
        element("div", symbol, class_="symbol", aria_hidden="true"),
        element(
            "div",
            paragraph(_name_policy(run), class_="eyebrow"),
            heading,
            paragraph(verdict.advice, class_="advice"),
            class_="words",
        ),
        class_=f"card {style}",
    )
    evidence = element("div", _explain_verdict(run), _explain_run(run), class_="evidence")
    body = [card, _render_tiles(run), evidence]
    return element("section", *body, id="verdict", aria_labelledby="verdict-title")


def render_card(run: RunReport) -> Html:
    """Write a small card, for comparisons."""
    word, symbol, style = _LOOKS.get(run.verdict.word, (run.verdict.word, "?", "unsure"))
    return element(
        "div",
        element("div", symbol, class_="symbol", aria_hidden="true"),
        element(
            "div",
            paragraph(_name_policy(run), class_="eyebrow"),
            element("h3", word),
            paragraph(run.verdict.advice, class_="advice"),
            class_="words",
        ),
        class_=f"card small {style}",
    )


def _name_policy(run: RunReport) -> str:
    verdict = run.verdict
    if verdict.policy is None:
        return f"{run.name} · {run.dataset}"
    return f"{verdict.policy}, seed {verdict.seed} · learned from {run.dataset}"


def _render_tiles(run: RunReport) -> Html:
    verdict = run.verdict
    shown = []
    source = "from the log alone"
    if verdict.real_episodes:
        source = f"from {count_noun(verdict.real_episodes, 'real episode')}"
    if verdict.estimate is not None:
        shown.append(
            tile(
                "Estimated return",
                write_number(verdict.estimate.value),
                f"95%: {write_interval(verdict.estimate)}, {source}",
            )
        )
    if verdict.logged is not None:
        episodes = "" if run.data is None else f"{run.data.summary['episodes']:,} episodes"
        interval = (
            "mean" if verdict.logged.low is None else f"95%: {write_interval(verdict.logged)}"
        )
        note = f"{interval} of {episodes}" if episodes else interval
        shown.append(tile("Return in the log", write_number(verdict.logged.value), note))
    if verdict.word != "no verdict":
        shown.append(
            tile(
                "Steps outside the data",
                write_share(verdict.outside_share),
                "of the policy’s imagined steps are less like the data than every logged step",
            )
        )
    if run.trust is not None and run.trust.policy is not None:
        policy = run.trust.policy
        if "trusted_at_data" in policy:
            shown.append(
                tile(
                    "Trusted actions",
                    write_share(policy["trusted_at_data"]),
                    f"of the policy at logged states (logged actions: "
                    f"{write_share(policy['logged_trusted'])})",
                )
            )
    if verdict.agreement is not None:
        shown.append(
            tile(
                "Agreement of estimators",
                write_number(verdict.agreement, 2),
                "rank correlation: 1 is the same order, 0 no relation",
            )
        )
    if verdict.true_return is not None:
        shown.append(
            tile(
                "Measured return",
                write_number(verdict.true_return),
                "in the simulator, for information only" + _explain_other_lengths(run),
            )
        )
    return tiles(*shown) if shown else Html("")


def _draw_returns(verdict: VerdictSection, *, is_comparable: bool) -> Html:
    """Draw the interval that decides next to that of the log."""
    if verdict.estimate is None or verdict.logged is None:
        return Html("")
    rows: list[tuple[str, Interval, str]] = [
        ("return in the log", verdict.logged, "square"),
        ("estimated return", verdict.estimate, "circle"),
    ]
    if verdict.true_return is not None and is_comparable:
        rows.append(("measured return", Interval(verdict.true_return), "diamond"))
    picture = draw_intervals(rows, "Returns with their 95% intervals")
    caption = element(
        "figcaption",
        element("strong", "Returns. "),
        "Marks are means and bars are 95% intervals. ",
        element(
            "span",
            "The policy counts as better only if its whole interval lies to the right of that of "
            "the log.",
            class_="meaning",
        ),
    )
    return element("figure", picture, caption, class_="figure")


def _explain_verdict(run: RunReport) -> Html:
    """Show the returns, and say why the verdict was given or what is missing for one."""
    verdict, is_comparable = run.verdict, run.paths is None or run.paths.comparable
    parts: list[object] = [_draw_returns(verdict, is_comparable=is_comparable)]
    if verdict.reasons:
        reasons = [_sentence(reason) for reason in verdict.reasons]
        if not is_comparable:
            reasons.append(_explain_lengths(run))
        parts.append(_column("Why this verdict", list_items(reasons)))
    if verdict.missing:
        parts.append(_column("What is missing", list_items(verdict.missing)))
    return element("div", *parts, class_="columns")


def _explain_lengths(run: RunReport) -> str:
    """Say that returns over episodes of different lengths cannot be compared."""
    assert run.paths is not None and run.data is not None
    logged = count_noun(run.data.summary["length_max"], "step")
    walked = count_noun(max(path["length"] for path in run.paths.paths), "step")
    return (
        f"The longest logged episode has {logged}, so the estimate looks no further ahead. The "
        f"measured return is that of up to {walked}: do not compare the two."
    )


def _explain_other_lengths(run: RunReport) -> str:
    if run.paths is None or run.paths.comparable:
        return ""
    return "; its episodes are longer than those of the log, so do not compare it"


def _explain_run(run: RunReport) -> Html:
    """Say what was learned, and where it is not safe."""
    weak = run.verdict.weak_spots or (_explain_silence(run),)
    return element(
        "div",
        _column("What was learned", list_items(describe_learning(run))),
        _column("Where it is not safe", list_items(weak)),
        class_="columns",
    )


def _explain_silence(run: RunReport) -> str:
    if run.trust is None:
        return "Unknown: this page holds no judgement of trust. The section Trust says why."
    return "No weak region was found in the sampled steps. The section Trust shows the evidence."


def _column(title: str, *children: object) -> Html:
    return element("div", element("h3", title), *children)


def _sentence(text: str) -> str:
    text = text[:1].upper() + text[1:]
    return text if text.endswith(".") else f"{text}."


def render_missing(missing: dict[str, str], part: str, default: str) -> Html:
    """Say why a section has no content."""
    reason = missing.get(part) or default
    return element("div", element("strong", "Not available. "), reason, class_="missing")


def describe_run(run: RunReport) -> Html:
    """Write the line below the title of the page."""
    facts = [f"data: {run.dataset}"]
    if run.environment:
        facts.append(f"environment: {run.environment}")
    if run.data is not None:
        facts.append(f"{run.data.summary['transitions']:,} steps")
        facts.append(f"{run.data.summary['episodes']:,} episodes")
    return join([paragraph(" · ".join(facts) or MISSING, class_="facts")])
