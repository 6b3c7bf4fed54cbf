"""Shadow comparison: approximate answers are computed again in full, in idle time. Those that differ are counted."""

import asyncio

import pytest
from gateway_fakes import Stack, eventually
from gateway_requests import values

from gateway.background import idle
from gateway.background.shadow import COMPARED_TOKENS
from gateway.stores.recent import ApproximateAnswer, ApproximateAnswers
from protocol.errors import EngineNotReady
from protocol.generation import Sampling
from protocol.graph import Path, Source, Subgraph
from protocol.plans import PlanOutcome, Recompute, Reuse
from protocol.prompts import Prompt

ASKED = {"query": "What is the capital?", "top_k": 3}


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(idle, "_FIRST_WAIT_S", 0.001)
    monkeypatch.setattr(idle, "_LONGEST_WAIT_S", 0.005)


@pytest.fixture
async def composing(in_process, stack: Stack):
    """A gateway that compares all its answers, each of which is composed."""
    stack.controller.recompute = Recompute("query", 0.2)
    stack.generator.composed, stack.generator.recomputed = 5, 1
    async with in_process(shadow_share=1.0) as served:
        yield served


async def counted(served, outcome: str, approximation: str = "composing") -> None:
    """Wait until one comparison has this outcome, and none has another."""
    async with asyncio.timeout(10):
        while not sum((found := await values(served, "ragtree_shadow_answers_total")).values()):
            await asyncio.sleep(0.002)
    assert {labels: count for labels, count in found.items() if count} == {(approximation, outcome): 1}


async def test_an_answer_is_computed_again_in_full_and_compared(composing):
    stack = composing.stack
    await composing.client.post("/query", json=ASKED)
    await counted(composing, "same")
    asked, again = stack.controller.admitted
    assert (again.prompt, again.namespace, again.reuse) == (asked.prompt, asked.namespace, Reuse.EXACT)
    assert stack.generator.samplings[-1] == Sampling(COMPARED_TOKENS)
    await eventually(lambda: stack.at_rest and len(stack.controller.reports) == 2)
    assert {report.outcome for report in stack.controller.reports} == {PlanOutcome.COMPLETED}


async def test_an_answer_from_facts_in_trees_is_compared_with_one_from_facts_in_full(in_process, stack: Stack):
    stack.controller.trees = True
    stack.retriever.graph = Subgraph(paths=(Path(("Alice", "Titanic"), ("-like->",), (Source("d1", 0, "hash"),), 0.5),))
    async with in_process(shadow_share=1.0) as served:
        reply = (await served.client.post("/query", json=ASKED | {"mode": "mix"})).json()
        assert (reply["facts_attention"], reply["reuse"]) == ("dependency", "exact")
        await counted(served, "same", "dependency")
    asked, again = stack.controller.admitted
    assert (again.prompt, again.reuse) == (asked.prompt, Reuse.EXACT)
    assert again.prompt.trees is None


async def test_an_answer_that_differs_is_counted(composing):
    generator = composing.stack.generator
    composing.stack.controller.busy = True
    await composing.client.post("/query", json=ASKED)
    generator.words = ("Something", " else")
    composing.stack.controller.busy = False
    await counted(composing, "different")


async def test_nothing_is_compared_while_the_controller_is_busy(composing):
    controller = composing.stack.controller
    controller.busy = True
    await composing.client.post("/query", json=ASKED)
    for _ in range(3):
        composing.stack.phases.reached["stats"].clear()
        await composing.stack.phases.reached["stats"].wait()
    assert len(controller.admitted) == 1
    controller.busy = False
    await counted(composing, "same")


async def test_a_comparison_that_fails_is_counted_and_the_next_one_goes_on(composing):
    phases = composing.stack.phases
    composing.stack.controller.busy = True
    await composing.client.post("/query", json=ASKED)
    phases.failing["queue"] = EngineNotReady("loading")
    composing.stack.controller.busy = False
    await counted(composing, "failed")
    del phases.failing["queue"]
    await composing.client.post("/query", json=ASKED)
    async with asyncio.timeout(10):
        while not (await values(composing, "ragtree_shadow_answers_total"))["composing", "same"]:
            await asyncio.sleep(0.002)


def noted(answers: ApproximateAnswers, *texts: str, temperature: float = 0.0) -> None:
    for text in texts:
        answer = ApproximateAnswer("q", "n", Prompt(()), "composing", text, 1.0)
        answers.note(answer, Sampling(8, temperature=temperature))


async def test_a_share_of_the_greedy_answers_is_kept_the_latest_few_of_them():
    draws = iter([0.3, 0.05, 0.0, 0.2])
    answers = ApproximateAnswers(0.1, lambda: next(draws))
    noted(answers, "a", "b", "c", "d")
    noted(answers, "e", temperature=0.7)
    assert [(await answers.next()).text for _ in range(2)] == ["b", "c"]
    waiting = asyncio.ensure_future(answers.next())
    await asyncio.sleep(0)
    assert not waiting.done()
    waiting.cancel()
    many = ApproximateAnswers(1.0)
    noted(many, *map(str, range(40)))
    assert [(await many.next()).text for _ in range(16)] == [str(number) for number in range(24, 40)]
