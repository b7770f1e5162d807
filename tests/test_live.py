"""What a terminal and a batch log show of the training of policies."""

import io
import re

import pytest
from rich.console import Console

from gelato import progress
from gelato.training import live
from gelato.training.live import LivePolicies, draw_sparklines

WEIGHTS = ("0.3", "1", "3", "10", "30")


def make_labels(policies: int) -> list[dict]:
    names = [f"gelato λ={weight} real={share}%" for weight in WEIGHTS for share in (5, 50)]
    labels = [{"method": name, "seed": seed} for name in names for seed in range(3)]
    return labels[:policies]


def make_rows(labels: list[dict], step: int, *, evaluated: bool = True) -> list[dict]:
    """Rows as metrics.csv has them: the return of policy i is 10·i + step."""
    rows = []
    for index, label in enumerate(labels):
        result = f"{10 * index + step:g}" if evaluated else ""
        row = {"step": step, **label, "updates_per_second": 500.0, "return": result}
        rows.append({**row, "initial_value": str(index), "penalty": "0.25"})
    return rows


def draw(display: LivePolicies, width: int = 80) -> list[str]:
    text = io.StringIO()
    console = Console(file=text, width=width, force_terminal=True, color_system=None)
    console.print(display)
    return text.getvalue().splitlines()


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """A terminal, and what is written to it."""
    text = io.StringIO()
    console = Console(file=text, width=80, height=24, force_terminal=True, color_system=None)
    monkeypatch.setattr(progress, "_console", console)
    return text


@pytest.mark.parametrize("width", [60, 80, 160])
def test_the_table_fits_the_terminal_and_cuts_names_only(width: int) -> None:
    display, labels = LivePolicies(make_labels(30)), make_labels(30)
    display.update(20, make_rows(labels, 20))
    lines = draw(display, width)
    assert max(map(len, lines)) <= width
    assert lines[2].split() == ["policy", "seed", "returns", "return", "best", "value", "penalty"]
    for line in lines[3:]:
        assert re.search(r" \d [▁-█]+ +\d+ +\d+ +\d+ +0\.25$", line)


def test_many_policies_are_shown_as_the_best_the_median_and_the_worst_of_each_method() -> None:
    labels = [*make_labels(30), {"method": "bc", "seed": 0}]
    display = LivePolicies(labels)
    display.update(5, make_rows(labels, 5))
    lines = draw(display, 120)
    assert lines[0].strip() == "training 31 policies"
    text = "\n".join(lines[3:])
    assert len(lines) == 3 + 4
    assert re.search(r"best +gelato λ=30 real=50% +2 .* 295 ", text)
    assert re.search(r"median +gelato λ=3 real=50% +0 .* 155 ", text)
    assert re.search(r"worst +gelato λ=0.3 real=5% +0 .* 5 ", text)
    assert re.search(r"best +bc +0 .* 305 ", text)


def test_few_policies_have_a_row_each_with_their_best_return() -> None:
    labels = make_labels(2)
    display = LivePolicies(labels)
    for step in (30, 20):
        display.update(step, make_rows(labels, step))
    lines = draw(display)
    assert len(lines) == 3 + 2 and re.search(r" 0 [▁-█]{2} +20 +30 ", lines[3])


def test_without_returns_the_sparkline_shows_the_critics_values() -> None:
    labels = make_labels(2)
    display = LivePolicies(labels)
    display.update(10, make_rows(labels, 10, evaluated=False))
    lines = draw(display)
    assert "values" in lines[2] and "returns" not in lines[2]
    assert re.search(r"1 █ +- +- +1 +0\.25$", lines[4])


def test_the_time_left_does_not_count_the_first_block_which_compiles(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = [0.0]
    monkeypatch.setattr(live.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(live, "is_terminal", lambda: False)
    labels = make_labels(1)
    display = LivePolicies(labels)
    with display(0, 100) as show:
        show(0, [])
        for step, now in ((10, 60.0), (20, 62.0), (30, 64.0)):
            clock[0] = now
            show(step, make_rows(labels, step))
        assert "30 of 100, 500 updates/s, 0:00:14 left" in draw(display)[1]


def test_a_resumed_training_shows_its_earlier_returns() -> None:
    labels = make_labels(1)
    display = LivePolicies(labels)
    rows = [
        {name: str(value) for name, value in row.items()}
        for step in (10, 20)
        for row in make_rows(labels, step)
    ]
    display.update(20, rows)
    display.update(30, make_rows(labels, 30))
    assert re.search(r"▁[▂-▇]█ +30 +30 ", draw(display)[3])


def test_the_cursor_is_restored_and_the_table_vanishes_after_an_error(
    terminal: io.StringIO,
) -> None:
    labels = make_labels(2)
    with pytest.raises(KeyboardInterrupt), LivePolicies(labels)(0, 100) as show:
        show(0, [])
        show(10, make_rows(labels, 10))
        progress.note("something happened")
        raise KeyboardInterrupt
    text = terminal.getvalue()
    assert "note: something happened" in text
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")
    # The last line of the table is erased.
    assert text.rindex("\x1b[2K") > text.rindex("penalty")


def test_without_a_terminal_an_evaluation_is_one_line_but_never_two_within_seconds(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]
    monkeypatch.setattr(live.time, "monotonic", lambda: clock[0])
    labels = make_labels(3)
    with LivePolicies(labels)(0, 1_000) as show:
        show(0, [])
        for second in range(1, 21):
            clock[0] = float(second)
            show(10 * second, make_rows(labels, 10 * second, evaluated=second % 2 == 0))
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 3  # after 6, 12 and 18 seconds
    assert lines[0] == (
        "3 policies of gelato λ=0.3 real=5%: 60 of 1,000, 500 updates/s, 0:01:34 left; returns 60 "
        "to 80, median 70"
    )


def test_without_evaluations_a_line_appears_every_minute(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]
    monkeypatch.setattr(live.time, "monotonic", lambda: clock[0])
    labels = make_labels(1)
    with LivePolicies(labels)(0, 1_000) as show:
        show(0, [])
        for second in range(10, 200, 10):
            clock[0] = float(second)
            show(second, make_rows(labels, second, evaluated=False))
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 3 and lines[0].startswith("gelato λ=0.3 real=5%, seed 0: 60 of 1,000")


def test_sparklines_share_one_scale_and_a_width() -> None:
    assert draw_sparklines([[0.0, 7.0], [3.5]], 8, "01234567") == ["07", "4"]
    assert draw_sparklines([[float(value) for value in range(100)]], 8, "01234567") == ["01234567"]
    assert draw_sparklines([[], []], 8) == ["", ""]
