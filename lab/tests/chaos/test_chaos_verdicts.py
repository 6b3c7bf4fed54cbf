"""The pure parts of chaos: kill order, recoveries, expected answers and allowed fates."""

from itertools import islice
from random import Random

import pytest

from loadtest.reporting.request_records import Outcome, QueryRecord
from ragtree_lab.chaos.expected_answers import ExpectedAnswers
from ragtree_lab.chaos.kill_schedule import kill_schedule
from ragtree_lab.chaos.recovery import STEADY_CHECKS, Recovery
from ragtree_lab.chaos.request_verdicts import Fate, Judge, kill_problems, request_problems
from ragtree_lab.chaos.settings import Ingress, killable
from ragtree_lab.chaos.stack_monitor import StackStatus
from ragtree_lab.chaos.victims import Kill, Victim

TEXTS = {"0": "Gunahata: This is known.", "1": "Zuve: Nothing is known."}


def planned(seed, count):
    return list(islice(kill_schedule(list(Victim), 4.0, Random(seed)), count))


def kill(victim, at, recovered, pid=7):
    return Kill(victim=victim, pid=pid, signal="SIGKILL", at=at, recovered=recovered, confirmed=recovered)


def query(sent=1.0, ended=2.0, outcome=Outcome.ANSWERED, **known):
    answer = {"status": 200, "terminals": 1, "text": "this is", "sources": ["0", "1"], "cited": ["0"]}
    record = {"number": 0, "at": sent, "query": "What?", "sent": sent, "ended": ended, "outcome": outcome}
    return QueryRecord(**{**record, **answer, **known})


def failed(reason, **known):
    return query(outcome=Outcome.FAILED, reason=reason, **known)


def judged(record, *kills):
    return Judge(kills, lambda record: None if record.text == "this is" else "another text").judge(record)


def test_each_round_kills_each_kind_once_in_random_order():
    of_seed = planned(3, 5 * len(Victim))
    rounds = [[each.victim for each in of_seed[begin : begin + len(Victim)]] for begin in range(0, 40, len(Victim))]
    assert all(sorted(each) == sorted(Victim) for each in rounds)
    assert len({tuple(each) for each in rounds}) > 1
    assert all(2.0 <= each.pause_s <= 6.0 for each in of_seed)
    assert of_seed == planned(3, 5 * len(Victim)) != planned(4, 5 * len(Victim))


def test_gateway_and_proxy_are_killable_only_behind_serve():
    assert set(killable(Ingress.SERVE)) - set(killable(Ingress.UVICORN)) == {Victim.GATEWAY, Victim.PROXY}


@pytest.mark.parametrize("victim", [Victim.GATEWAY, Victim.PROXY])
@pytest.mark.parametrize(
    "cut",
    [
        failed("the stream broke: ValueError", terminals=0),
        failed("the stream broke: ValueError", terminals=1),
        failed("no terminal event", terminals=0),
        failed("no response: ConnectionRefusedError", status=None, terminals=0),
        failed("HTTP 500", status=500, terminals=0),
    ],
)
def test_connection_may_break_only_with_its_process(victim, cut):
    assert judged(cut, kill(victim, 1.5, 3.0)).fate is Fate.CUT
    assert judged(cut, kill(Victim.GENERATOR, 1.5, 3.0)).fate is Fate.BROKEN
    assert judged(cut, kill(victim, 2.5, 3.0)).fate is Fate.BROKEN


@pytest.mark.parametrize(
    "never",
    [
        failed("2 terminal events", terminals=2),
        failed("the stream broke: ValueError", terminals=2),
        failed("output_text.delta after the terminal event", terminals=1),
        failed("no end within 70 s", terminals=0),
        failed("no response: TimeoutError", status=None, terminals=0),
        failed("HTTP 500 internal_error", status=500, terminals=0),
        failed("HTTP 503", status=503, terminals=0),
    ],
)
def test_broken_requests_are_never_allowed(never):
    killed = kill(Victim.PROXY, 1.5, 3.0)
    result = judged(never, killed)
    assert result.fate is Fate.BROKEN
    assert len(request_problems([result, judged(query(sent=4.0, ended=5.0), killed)], [killed])) == 1


@pytest.mark.parametrize(
    ("record", "fate"),
    [
        (query(), Fate.COMPLETED),
        (failed("query.failed: engine_died"), Fate.FAILED),
        (failed("query.incomplete: timeout"), Fate.FAILED),
        (query(outcome=Outcome.REFUSED, status=503, reason="unavailable"), Fate.REFUSED),
    ],
)
def test_request_may_fail_only_during_a_recovery(record, fate):
    during, before = kill(Victim.GENERATOR, 1.5, 3.0), kill(Victim.GENERATOR, 0.1, 0.9)
    after = query(sent=9.0, ended=9.5)
    assert (judged(record, during).fate, judged(record, during).kill) == (fate, 0)
    assert request_problems([judged(each, during) for each in (record, after)], [during]) == []
    problems = request_problems([judged(each, before) for each in (record, after)], [before])
    assert (problems == []) is (fate is Fate.COMPLETED)


def test_internal_errors_and_wrong_answers_are_always_problems():
    killed = kill(Victim.RETRIEVER, 1.5, 3.0)
    records = [failed("query.failed: internal_error"), query(text="that is"), query(sent=4.0)]
    results = [judged(record, killed) for record in records]
    assert [each.fate for each in results] == [Fate.FAILED, Fate.WRONG, Fate.COMPLETED]
    assert len(request_problems(results, [killed])) == 2


def test_missing_requests_kills_and_recoveries_are_problems():
    killed = kill(Victim.REDIS, 1.5, 3.0)
    assert request_problems([judged(query(), killed)], [killed]) == ["no request was sent after the last recovery"]
    found = kill_problems([killed, kill(Victim.PROXY, 4.0, None)], [Victim.REDIS, Victim.PROXY, Victim.GENERATOR])
    assert found == ["never killed: generator", "no recovery from the kill of proxy"]


def test_report_counts_the_requests_of_each_recovery():
    kills = [kill(Victim.GENERATOR, 1.5, 3.0), kill(Victim.PROXY, 5.0, None)]
    judge = Judge(kills, lambda _: None)
    records = [query(), failed("query.failed: engine_died"), query(sent=3.5, ended=4.0), query(sent=8.0, ended=9.0)]
    first, second = judge.report([judge.judge(record) for record in records])
    assert (first.recovery_s, first.fates) == (1.5, {Fate.COMPLETED: 1, Fate.FAILED: 1})
    assert first.reasons == {"query.failed: engine_died": 1}
    assert (second.recovery_s, second.fates) == (None, {Fate.COMPLETED: 1})


def test_expected_answers_come_from_the_undisturbed_run():
    expected = ExpectedAnswers([query(), query(text="this  is"), query(outcome=Outcome.FAILED, text="that")])
    assert expected.problems(["What?"]) == []
    assert expected.problems(["What?", "Who?"]) == ["1 questions were not answered by the undisturbed stack"]
    assert expected.wrong(query(text="this  is")) is None
    assert "another text" in (expected.wrong(query(text="this isthis is")) or "")
    assert "other sources" in (expected.wrong(query(sources=["1", "0"])) or "")
    assert "other sources" in (expected.wrong(query(cited=["1"])) or "")
    unstable = ExpectedAnswers([query(), query(sources=["1", "0"])])
    assert unstable.problems(["What?"]) == ["1 questions had varying sources in the undisturbed run"]


@pytest.mark.parametrize(("text", "repeats"), [("gunahata : this is", True), ("this is", False), ("zuve:", False)])
def test_fake_answers_must_repeat_their_first_source(text, repeats):
    expected = ExpectedAnswers([query(text=text)], TEXTS)
    assert (expected.problems(["What?"]) == []) is repeats


def check(at, answered=True, instances=("a", "b")):
    return StackStatus(at, at + 0.5, True, False, frozenset(instances), answered)


def recovery(victim, count, alive):
    return Recovery(kill(victim, 1.0, None), count, check(0.0), lambda _: alive)


def test_recovery_needs_several_good_checks_in_a_row():
    waiting = recovery(Victim.PROXY, 1, [8])
    seen = [check(2.0), check(3.0, answered=False), *(check(4.0 + number) for number in range(STEADY_CHECKS))]
    assert [waiting.update(each) for each in seen] == [False] * (STEADY_CHECKS + 1) + [True]
    assert (waiting.kill.recovered, waiting.kill.confirmed) == (4.5, 3.5 + STEADY_CHECKS)


def test_refusals_are_allowed_until_the_recovery_is_confirmed():
    waiting = recovery(Victim.PROXY, 1, [8])
    for number in range(STEADY_CHECKS):
        waiting.update(check(4.0 + number))
    refused = {"outcome": Outcome.REFUSED, "status": 503, "reason": "unavailable", "terminals": 0}
    between, after = query(5.0, 5.1, **refused), query(30.0, 30.1, **refused)
    assert judged(between, waiting.kill).kill == 0
    assert judged(after, waiting.kill).kill is None


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
def test_recovery_needs_a_successor_known_to_the_controller(victim, count, alive, instances, well):
    waiting = recovery(victim, count, alive)
    assert [waiting.update(check(at, instances=instances)) for at in range(2, 2 + STEADY_CHECKS)][-1] is well


def test_checks_from_before_the_kill_are_ignored():
    waiting = recovery(Victim.PROXY, 1, [8])
    times = [0.7, 0.8, 0.9, *(1.1 + number for number in range(STEADY_CHECKS - 1))]
    assert [waiting.update(check(at)) for at in times] == [False] * len(times)
