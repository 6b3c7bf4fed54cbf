"""Every question is asked in every mode, whatever happens to the others."""

import threading

import pytest
from scripted_stack import ScriptedStack, reply, stream

from examine.evaluation.asking import Asker, Mode
from examine.evaluation.evaluation import BOTH
from examine.evaluation.question_file import AskedQuestion, NumberedQuestion
from protocol.errors import Overloaded

CONFIGURED = (Mode("as configured", None),)


def questions(count: int) -> list[NumberedQuestion]:
    return [NumberedQuestion(line, AskedQuestion(f"question {line}")) for line in range(1, count + 1)]


def test_modes_take_turns_and_composed_comes_first():
    stack = ScriptedStack(lambda _: stream(reply("x")))
    rows = list(Asker(stack.query, {"collection": "c"}, 1).rows(questions(2), BOTH))
    assert [(row.line, row.mode) for row in rows] == [(1, "composed"), (1, "exact"), (2, "composed"), (2, "exact")]
    assert [body["reuse"] for body in stack.bodies] == ["composed", "exact"] * 2
    assert stack.bodies[0] == {"collection": "c", "query": "question 1", "reuse": "composed"}


def test_without_a_choice_the_stack_decides_about_reuse():
    stack = ScriptedStack(lambda _: stream(reply("x")))
    list(Asker(stack.query, {}, 1).rows(questions(1), CONFIGURED))
    assert stack.bodies == [{"query": "question 1"}]


@pytest.mark.parametrize("error", [Overloaded("full"), RuntimeError("odd"), KeyError("type")])
def test_a_failing_question_is_a_row_and_ends_nothing(error):
    def script(body):
        if body["query"] == "question 2":
            raise error
        return stream(reply("x"))

    first, second, third = Asker(ScriptedStack(script).query, {}, 1).rows(questions(3), CONFIGURED)
    assert (first.error, third.error) == (None, None)
    assert str(error) in second.error
    assert (second.answer, second.scores) == (None, None)


def test_as_many_questions_run_at_once_as_wanted():
    meeting = threading.Barrier(3, timeout=30)

    def script(_):
        meeting.wait()
        yield from stream(reply("x"))

    stack = ScriptedStack(script)
    rows = list(Asker(stack.query, {}, 3).rows(questions(9), CONFIGURED))
    assert stack.most_running == 3
    assert sorted(row.line for row in rows) == list(range(1, 10))
    assert [row.error for row in rows] == [None] * 9


def test_who_stops_reading_stops_the_asking():
    go_on = threading.Event()

    def script(body):
        if body["query"] != "question 1":
            assert go_on.wait(30)
        yield from stream(reply("x"))

    stack = ScriptedStack(script)
    before = set(threading.enumerate())
    rows = Asker(stack.query, {}, 1).rows(questions(50), CONFIGURED)
    assert next(rows).line == 1
    (worker,) = set(threading.enumerate()) - before
    rows.close()
    go_on.set()
    worker.join(30)
    assert not worker.is_alive()
    assert len(stack.bodies) <= 2
