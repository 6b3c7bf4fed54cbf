"""The progress of long tasks without a terminal."""

import io

import pytest
from rich.console import Console

from services.cli import output


@pytest.fixture
def log(monkeypatch):
    written = io.StringIO()
    monkeypatch.setattr(output, "errors", Console(file=written))
    return written


def test_step_bars_without_a_terminal_print_start_end_and_a_line_now_and_then(log):
    now = 0.0
    with output.StepBars(lambda: now) as show:
        for done in range(101):
            show("measuring", done, 100)
            now += 1.0
    assert log.getvalue().splitlines() == [
        *("measuring: 0 of 100", "measuring: 30 of 100", "measuring: 60 of 100", "measuring: 90 of 100"),
        "measuring: 100 of 100",
    ]


def test_step_bars_count_steps_of_unknown_length(log):
    with output.StepBars(lambda: 0.0) as show:
        show("reading", 7, None)
        show("ingesting", 3, 9)
    assert log.getvalue().splitlines() == ["reading: 7", "ingesting: 3 of 9"]
