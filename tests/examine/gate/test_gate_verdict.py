"""The gate's verdict on rows of results."""

import pytest

from examine.composing.rows import ComposeRow, Interval
from examine.gate.examination import decided, verdict


def row(task: str, score: float, full: float, low: float) -> ComposeRow:
    return ComposeRow("a model", "query", task, 0.2, 0.19, 100, score, full, Interval(low, 0.02), 0.97, 0.01, 0.4)


def test_composing_passes_if_it_hardly_loses_anything():
    report = verdict([row("multi-key", 0.59, 0.6, -0.05), row("multi-value", 0.5, 0.5, 0.0)], "f", 7.0)
    assert (report.passed, report.why, report.fingerprint, report.examined_at) == (True, "", "f", 7.0)
    assert [task.most_lost for task in report.tasks] == [pytest.approx(0.05 / 0.6), 0.0]
    assert report.bound == pytest.approx(1.25 * 0.4)


def test_one_task_that_may_lose_too_much_fails_it():
    report = verdict([row("multi-key", 0.6, 0.6, 0.0), row("multi-value", 0.4, 0.5, -0.2)], "f", 0.0)
    assert not report.passed
    assert report.why == (
        "on multi-value, composing may lose 40% of the full prefill's score (0.40 against 0.50), more than 10%"
    )


def test_a_task_that_the_model_cannot_do_tells_nothing():
    report = verdict([row("multi-key", 0.6, 0.6, 0.0), row("two-hop", 0.0, 0.1, -0.1)], "f", 0.0)
    assert report.passed
    assert [task.tells for task in report.tasks] == [True, False]


def test_without_any_telling_task_it_fails():
    report = verdict([row("two-hop", 0.1, 0.1, 0.0)], "f", 0.0)
    assert not report.passed
    assert "nothing can be said" in report.why


@pytest.mark.parametrize(
    ("asked", "clear"),
    [
        pytest.param(row("multi-key", 0.6, 0.6, -0.05), True, id="it surely loses little"),
        pytest.param(row("multi-key", 0.6, 0.6, -0.08), False, id="it may lose much"),
        pytest.param(row("multi-key", 0.3, 0.6, -0.4), False, id="it may also lose little"),
        pytest.param(row("two-hop", 0.0, 0.1, -0.1), True, id="the model cannot do the task"),
    ],
)
def test_a_task_is_decided_when_more_questions_would_say_the_same(asked, clear):
    assert decided([asked]) is clear


def test_a_task_is_decided_when_composing_surely_loses_much():
    lost = ComposeRow("a model", "query", "multi-key", 0.2, 0.19, 100, 0.3, 0.6, Interval(-0.4, -0.2), 0.9, 0.1, 0.4)
    assert decided([lost])
