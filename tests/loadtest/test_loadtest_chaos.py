"""The pure parts of chaos: who is killed when, what a recovery is, which answers are right, and what may not be."""

from itertools import islice
from random import Random

import pytest

from loadtest.chaos.judging import Fate, Judge, problems_of, problems_of_kills
from loadtest.chaos.recovery import STEADY_LOOKS, Look, Recovery
from loadtest.chaos.right_answers import RightAnswers
from loadtest.chaos.schedule import kills
from loadtest.chaos.settings import Ingress, killable
from loadtest.chaos.victims import Kill, Victim
from loadtest.reporting.records import Outcome, QueryRecord

TEXTS = {"0": "Gunahata: This is known.", "1": "Zuve: Nothing is known."}


def planned(seed, count):
    return list(islice(kills(list(Victim), 4.0, Random(seed)), count))


def kill(victim, at, recovered, pid=7):
    return Kill(victim=victim, pid=pid, signal="SIGKILL", at=at, recovered=recovered)


def query(sent=1.0, ended=2.0, outcome=Outcome.ANSWERED, **known):
    answer = {"status": 200, "terminals": 1, "text": "this is", "sources": ["0", "1"], "cited": ["0"]}
    record = {"number": 0, "at": sent, "query": "What?", "sent": sent, "ended": ended, "outcome": outcome}
    return QueryRecord(**{**record, **answer, **known})


def failed(reason, **known):
    return query(outcome=Outcome.FAILED, reason=reason, **known)


def judged(record, *there):
    return Judge(there, lambda record: None if record.text == "this is" else "another text").judge(record)


def test_each_round_of_kills_has_each_kind_once_and_an_order_of_its_own():
    of_seed = planned(3, 5 * len(Victim))
    rounds = [[each.victim for each in of_seed[begin : begin + len(Victim)]] for begin in range(0, 40, len(Victim))]
    assert all(sorted(each) == sorted(Victim) for each in rounds)
    assert len({tuple(each) for each in rounds}) > 1
    assert all(2.0 <= each.pause_s <= 6.0 for each in of_seed)
    assert of_seed == planned(3, 5 * len(Victim)) != planned(4, 5 * len(Victim))


def test_what_holds_the_connections_can_only_be_killed_where_something_brings_it_back():
    assert set(killable(Ingress.SERVE)) - set(killable(Ingress.UVICORN)) == {Victim.GATEWAY, Victim.PROXY}


@pytest.mark.parametrize("victim", [Victim.GATEWAY, Victim.PROXY])
@pytest.mark.parametrize(
    "cut",
    [
        failed("the stream broke: ValueError", terminals=0),
        failed("no terminal event", terminals=0),
        failed("no response: ConnectionRefusedError", status=None, terminals=0),
        failed("HTTP 500", status=500, terminals=0),
    ],
)
def test_a_connection_may_break_only_with_the_process_that_holds_it(victim, cut):
    assert judged(cut, kill(victim, 1.5, 3.0)).fate is Fate.CUT
    assert judged(cut, kill(Victim.GENERATOR, 1.5, 3.0)).fate is Fate.BROKEN
    assert judged(cut, kill(victim, 2.5, 3.0)).fate is Fate.BROKEN


@pytest.mark.parametrize(
    "never",
    [
        failed("2 terminal events", terminals=2),
        failed("output_text.delta after the terminal event", terminals=1),
        failed("no end within 70 s", terminals=0),
        failed("no response: TimeoutError", status=None, terminals=0),
        failed("HTTP 500 internal_error", status=500, terminals=0),
        failed("HTTP 503", status=503, terminals=0),
    ],
)
def test_some_ends_are_never_allowed(never):
    there = kill(Victim.PROXY, 1.5, 3.0)
    result = judged(never, there)
    assert result.fate is Fate.BROKEN
    assert len(problems_of([result, judged(query(sent=4.0, ended=5.0), there)], [there])) == 1


@pytest.mark.parametrize(
    ("record", "fate"),
    [
        (query(), Fate.COMPLETED),
        (failed("query.failed: engine_died"), Fate.FAILED),
        (failed("query.incomplete: timeout"), Fate.FAILED),
        (query(outcome=Outcome.REFUSED, status=503, reason="unavailable"), Fate.REFUSED),
    ],
)
def test_during_a_recovery_a_request_may_fail_cleanly_and_at_other_times_it_may_not(record, fate):
    during, before = kill(Victim.GENERATOR, 1.5, 3.0), kill(Victim.GENERATOR, 0.1, 0.9)
    after = query(sent=9.0, ended=9.5)
    assert (judged(record, during).fate, judged(record, during).kill) == (fate, 0)
    assert problems_of([judged(each, during) for each in (record, after)], [during]) == []
    problems = problems_of([judged(each, before) for each in (record, after)], [before])
    assert (problems == []) is (fate is Fate.COMPLETED)


def test_a_defect_and_a_wrong_answer_are_problems_at_any_time():
    there = kill(Victim.RETRIEVER, 1.5, 3.0)
    records = [failed("query.failed: internal_error"), query(text="that is"), query(sent=4.0)]
    results = [judged(record, there) for record in records]
    assert [each.fate for each in results] == [Fate.FAILED, Fate.WRONG, Fate.COMPLETED]
    assert len(problems_of(results, [there])) == 2


def test_requests_must_go_on_after_the_last_recovery_and_every_kind_must_come_and_recover():
    there = kill(Victim.REDIS, 1.5, 3.0)
    assert problems_of([judged(query(), there)], [there]) == ["no request was sent after the last recovery"]
    found = problems_of_kills([there, kill(Victim.PROXY, 4.0, None)], [Victim.REDIS, Victim.PROXY, Victim.GENERATOR])
    assert found == ["never killed: generator", "no recovery from the kill of proxy"]


def test_a_kill_is_told_with_the_requests_of_its_recovery():
    there = [kill(Victim.GENERATOR, 1.5, 3.0), kill(Victim.PROXY, 5.0, None)]
    judge = Judge(there, lambda _: None)
    records = [query(), failed("query.failed: engine_died"), query(sent=3.5, ended=4.0), query(sent=8.0, ended=9.0)]
    first, second = judge.report([judge.judge(record) for record in records])
    assert (first.recovery_s, first.fates) == (1.5, {Fate.COMPLETED: 1, Fate.FAILED: 1})
    assert first.reasons == {"query.failed: engine_died": 1}
    assert (second.recovery_s, second.fates) == (None, {Fate.COMPLETED: 1})


def test_an_answer_is_right_as_an_undisturbed_stack_gave_it():
    right = RightAnswers([query(), query(text="this  is"), query(outcome=Outcome.FAILED, text="that")])
    assert right.problems(["What?"]) == []
    assert right.problems(["What?", "Who?"]) == ["1 questions were not answered by the undisturbed stack"]
    assert right.wrong(query(text="this  is")) is None
    assert "another text" in (right.wrong(query(text="this isthis is")) or "")
    assert "other sources" in (right.wrong(query(sources=["1", "0"])) or "")
    assert "other sources" in (right.wrong(query(cited=["1"])) or "")
    torn = RightAnswers([query(), query(sources=["1", "0"])])
    assert torn.problems(["What?"]) == ["1 questions had other sources from one time to the next, undisturbed"]


@pytest.mark.parametrize(("text", "repeats"), [("gunahata : this is", True), ("this is", False), ("zuve:", False)])
def test_where_the_engine_repeats_its_first_source_an_answer_must(text, repeats):
    right = RightAnswers([query(text=text)], TEXTS)
    assert (right.problems(["What?"]) == []) is repeats


def look(at, answered=True, instances=("a", "b")):
    return Look(at, at + 0.5, True, False, frozenset(instances), answered)


def recovery(victim, count, alive):
    return Recovery(kill(victim, 1.0, None), count, look(0.0), lambda _: alive)


def test_a_stack_has_recovered_when_several_looks_in_a_row_say_so():
    waiting = recovery(Victim.PROXY, 1, [8])
    seen = [look(2.0), look(3.0, answered=False), look(4.0), look(5.0), look(6.0)]
    assert [waiting.hear(each) for each in seen] == [False] * 4 + [True]
    assert waiting.kill.recovered == 4.5


@pytest.mark.parametrize(
    ("victim", "count", "alive", "instances", "well"),
    [
        (Victim.PROXY, 1, [7], "ab", False),
        (Victim.GATEWAY, 2, [8], "ab", False),
        (Victim.GATEWAY, 2, [8, 9], "ab", True),
        (Victim.GENERATOR, 2, [8, 9], "ab", False),
        (Victim.GENERATOR, 2, [8, 9], "bc", True),
        (Victim.REDIS, 1, [], "ab", False),
        (Victim.REDIS_HANGS, 1, [7], "ab", True),
    ],
)
def test_a_successor_must_be_there_and_the_controller_must_know_it(victim, count, alive, instances, well):
    waiting = recovery(victim, count, alive)
    assert [waiting.hear(look(at, instances=instances)) for at in range(2, 2 + STEADY_LOOKS)][-1] is well


def test_a_look_from_before_the_kill_says_nothing():
    waiting = recovery(Victim.PROXY, 1, [8])
    assert [waiting.hear(look(at)) for at in (0.7, 0.8, 0.9, 1.1)] == [False] * 4
