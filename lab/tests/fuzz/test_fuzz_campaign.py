"""What a campaign sees: wrong answers, dead processes, server errors; what it keeps, and that it can repeat it."""

import asyncio
import subprocess
import sys
import time

import psutil
import pytest
from loadtest_runs import until
from stub_stack import stub_stack

from ragtree_lab.fuzz.campaign import Campaign, Trace
from ragtree_lab.fuzz.judge import Judge
from ragtree_lab.fuzz.keeper import Keeper, kept
from ragtree_lab.fuzz.lateness import Lateness
from ragtree_lab.fuzz.replay import Replay
from ragtree_lab.fuzz.requests import Caller, Drawn, Piece, Request, call, one
from ragtree_lab.fuzz.sender import Answer, End, Outcome, Sender, parsed
from ragtree_lab.fuzz.sources import Lane
from ragtree_lab.fuzz.verdicts import faults
from ragtree_lab.fuzz.watcher import Watcher

ERROR = b'{"error": {"message": "m", "type": "t", "param": null, "code": "%s"}}'
POLITE = Request(pieces=(Piece(call("GET", "/x")),))
RUDE = Request(pieces=(Piece(b"\x00"),), rude=True)


@pytest.fixture
def stack():
    with stub_stack() as stub:
        yield stub


class FixedDrawing:
    """Draws the same input again and again."""

    def __init__(self, given):
        self._given = given

    async def inputs(self, source):
        for number in range(1000):
            yield Drawn(source=source, seed=1, number=number, input=self._given)


def outcome(*answers, end=End.CLOSED, seconds=0.1, late_s=0.0):
    return Outcome(end, answers, 10.0, 10.0 + seconds, late_s)


def answer(status, body=ERROR % b"x", whole=True, **headers):
    return Answer(status, {name.replace("_", "-"): value for name, value in headers.items()}, body, whole)


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        (outcome(answer(500, ERROR % b"internal_error")), "HTTP 500 internal_error"),
        (outcome(answer(502)), "HTTP 502"),
        (outcome(answer(503)), "HTTP 503 without Retry-After"),
        (outcome(answer(503, ERROR % b"engine_died", retry_after="2")), "HTTP 503 engine_died"),
        (outcome(answer(429)), "HTTP 429 without Retry-After"),
        (outcome(answer(404, b"not here")), "HTTP 404 without the API's error body"),
        (outcome(answer(422), seconds=11), "a refusal (HTTP 422) took over 10 s"),
        (outcome(answer(200, b"{", whole=False)), "an answer (HTTP 200) was cut off"),
        (outcome(), "the connection was closed without an answer"),
        (outcome(end=End.RESET), "the connection ended reset by the stack"),
        (outcome(end=End.TIMEOUT), "the connection ended without an end"),
        (
            outcome(answer(200, b'data: {"error": {"code": "engine_died"}}', content_type="text/event-stream")),
            "a stream that ended with engine_died",
        ),
    ],
)
def test_what_must_not_happen_is_a_fault(given, fault):
    assert list(faults(POLITE, given)) == [fault]


@pytest.mark.parametrize(
    "given",
    [
        outcome(answer(200, b"{}")),
        outcome(answer(400)),
        outcome(answer(429, retry_after="3")),
        outcome(answer(503, ERROR % b"overloaded", retry_after="2")),
    ],
)
def test_answers_and_refusals_are_no_faults(given):
    assert list(faults(POLITE, given)) == []


def test_the_stack_is_not_blamed_for_a_late_client():
    assert list(faults(POLITE, outcome(seconds=10.2, late_s=1.0))) == ["the connection was closed without an answer"]
    assert list(faults(POLITE, outcome(seconds=10.2, late_s=10.0))) == []
    refusal = answer(404)
    assert list(faults(POLITE, outcome(refusal, seconds=11.0))) == ["a refusal (HTTP 404) took over 10 s"]
    assert list(faults(POLITE, outcome(refusal, seconds=11.0, late_s=2.0))) == []


async def test_lateness_is_what_a_loop_was_held():
    lateness = Lateness()
    watching = asyncio.create_task(lateness.watch())
    await asyncio.sleep(0)
    begun = time.monotonic()
    time.sleep(1.5)  # noqa: ASYNC251 - the loop is held on purpose
    held = time.monotonic()
    await asyncio.sleep(0.25)
    watching.cancel()
    assert 1.0 < lateness.between(begun, held) <= held - begun
    assert lateness.between(begun, begun + 0.7) == pytest.approx(0.5, abs=0.1)
    assert lateness.between(held + 1, held + 2) == 0


def test_nothing_but_a_server_error_is_wrong_with_the_answer_to_garbage():
    assert list(faults(RUDE, outcome(answer(400, b"Invalid HTTP request received.")))) == []
    assert list(faults(RUDE, outcome(end=End.RESET))) == []
    assert list(faults(RUDE, outcome(answer(500)))) == ["HTTP 500"]


def test_answers_are_read_from_bytes_whole_chunked_pipelined_or_cut_off():
    plain = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
    chunked = b"HTTP/1.1 404 No\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n"
    assert [(each.status, each.body) for each in parsed(plain + chunked + b"garbage")] == [(200, b"{}"), (404, b"ab")]
    (cut,) = parsed(plain[:-1])
    assert (cut.body, cut.whole) == (b"{", False)


async def test_server_error_is_kept_and_comes_again_when_it_is_repeated(stack, tmp_path):
    keeper, trace = Keeper(tmp_path), Trace()
    watcher = Watcher(stack.url, None, lambda what: None)
    judge = Judge(stack.url, "key", 1, lambda what: None)
    await judge.learn()
    watcher.start()
    sender = Sender(stack.url, {Caller.STRANGER: "secret"})
    campaign = Campaign(FixedDrawing(one(call("GET", "/broken"))), sender, watcher, judge, keeper, trace)
    await campaign.attack([Lane("only", ("broken",), 2)], 20, 0.1, most=3)
    assert campaign.requests == {"broken": 3}
    assert campaign.statuses == {"500": 3}
    assert keeper.counts == {"HTTP 500 internal_error (broken)": 3}
    findings = kept(tmp_path)
    assert sorted(finding.inputs[0].number for finding in findings) == [0, 1, 2]
    script = next(tmp_path.glob("*/00-0.sh")).read_text()
    assert '"$URL"/broken' in script
    assert "secret" not in "".join(file.read_text() for file in tmp_path.rglob("*") if file.is_file())

    replay = Replay(sender, watcher)
    (repeated,) = await replay.repeat(findings[:1])
    assert repeated.broke == ("HTTP 500 internal_error",)
    stack.broken = 200
    (mended,) = await replay.repeat(findings[:1])
    assert mended.broke == ()
    watcher.close()
    await judge.close()


async def test_all_requests_of_an_engine_that_died_are_suspects(stack, tmp_path):
    stack.code = "engine_died"
    watcher = Watcher(stack.url, None, lambda what: None)
    judge = Judge(stack.url, "key", 1, lambda what: None)
    await judge.learn()
    watcher.start()
    drawing = FixedDrawing(one(call("GET", "/broken")))
    campaign = Campaign(drawing, Sender(stack.url, {}), watcher, judge, Keeper(tmp_path), Trace())
    await campaign.attack([Lane("only", ("broken",), 3)], 20, 0.1, most=3)
    first = kept(tmp_path)[0]
    assert first.what == "HTTP 500 engine_died"
    assert {drawn.number for drawn in first.inputs} == {0, 1, 2}
    watcher.close()
    await judge.close()


async def test_nothing_is_sent_while_the_stack_is_not_ready(stack, tmp_path):
    stack.ready = False
    watcher = Watcher(stack.url, None, lambda what: None)
    judge = Judge(stack.url, "key", 1, lambda what: None)
    await judge.learn()
    watcher.start()
    sender = Sender(stack.url, {})
    campaign = Campaign(FixedDrawing(one(call("GET", "/x"))), sender, watcher, judge, Keeper(tmp_path), Trace())
    attack = asyncio.create_task(campaign.attack([Lane("only", ("plain",), 1)], 30, 0.1, most=1))
    await asyncio.sleep(0.5)
    assert not campaign.requests
    stack.ready = True
    await attack
    assert campaign.requests == {"plain": 1}
    watcher.close()
    await judge.close()


async def test_judge_sees_wrong_answers_sources_and_foreign_collections(stack):
    harms = []
    judge = Judge(stack.url, "key", 1, harms.append)
    await judge.learn()
    question = judge.questions[0]
    assert (await judge.ask(question)).wrong is None
    await judge.inspect()
    assert harms == []
    stack.answer, stack.logprob = "Thirteen barrels.", -3.0
    assert "Thirteen" in (await judge.ask(question)).wrong
    stack.answer, stack.sources = "Twelve barrels.", ["1"]
    await judge.ask(question)
    stack.sources, stack.collections = ["0"], ["default", "stolen"]
    await judge.inspect()
    assert harms == ["another text", "other documents", "the judge's tenant has foreign collections: ['stolen']"]
    await judge.close()


async def test_judge_takes_another_token_that_was_as_likely(stack):
    harms = []
    judge = Judge(stack.url, "key", 1, harms.append)
    await judge.learn()
    question = judge.questions[0]
    stack.answer, stack.logprob = "Twelve casks.", -1.2
    near = await judge.ask(question)
    assert (near.wrong, near.near) == (None, True)
    stack.logprob = -2.0
    unlikely = await judge.ask(question)
    assert "casks" in unlikely.wrong
    assert not unlikely.near
    assert harms == ["another text"]
    await judge.close()


def test_watcher_sees_that_a_process_has_ended(stack):
    harms = []
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    watcher = Watcher(stack.url, psutil.Process(child.pid), harms.append)
    watcher.check_processes()
    assert harms == []
    assert watcher.memory[f"stack ({child.pid})"].first > 0
    child.kill()
    child.wait()
    watcher.check_processes()
    assert harms == ["a process ended: stack"]
    assert watcher.died_since(0)


def test_watcher_sees_that_the_stack_is_not_ready_any_more(stack):
    harms = []
    watcher = Watcher(stack.url, None, harms.append)
    watcher.start()
    until(lambda: watcher.is_ready, timeout_s=10)
    stack.ready = False
    until(lambda: harms, timeout_s=10)
    watcher.close()
    assert harms[0] == "/readyz says that the stack is not ready"
