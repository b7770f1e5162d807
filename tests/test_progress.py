"""The lines that a long command prints in a batch job."""

import re
import time

from gelato import progress


def test_without_a_terminal_a_line_says_how_far_it_is(capsys, monkeypatch):
    monkeypatch.setattr(progress, "_SECONDS_UNTIL_LINES", 0.0)
    monkeypatch.setattr(progress, "_SECONDS_BETWEEN_LINES", 0.0)
    with progress.progress("fitting hopper", 3_000) as advance:
        for _ in range(3):
            time.sleep(0.01)
            advance(1_000, status="loss 0.5 [low]")
    shown = capsys.readouterr()
    assert shown.out == ""
    assert re.search(
        r"^fitting hopper: 2,000 of 3,000, 0:00:0\d left; loss 0\.5 \[low\]$",
        shown.err,
        re.MULTILINE,
    )
    assert len(shown.err.splitlines()) == 3


def test_a_short_command_stays_silent(capsys):
    with progress.progress("fitting hopper", 10) as advance:
        advance(10)
    assert capsys.readouterr().err == ""


def test_what_takes_long_is_named_in_a_log_and_what_does_not_is_not(capsys, monkeypatch):
    with progress.working("embedding"):
        pass
    monkeypatch.setattr(progress, "_SECONDS_UNTIL_LINES", 0.0)
    with progress.working("judging"):
        time.sleep(0.2)
    assert capsys.readouterr().err == "judging\n"
