"""The prompts benchmark with a scripted engine: what is asked, and what its rows say."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from protocol.generation import GenerationStep, PrefillResult
from protocol.prompts import Prompt, Segment, SegmentKind
from protocol.retrieval import Chunk
from ragtree_lab.prompts.benchmark import PromptsBenchmark, PromptsSettings
from ragtree_lab.prompts.questions import AskedQuestion
from ragtree_lab.prompts.ways import CONFIGURED, GREEDY, Way, ways_of

CHUNK = Chunk("c", "c", "c", 0, "The fox is red.", "c")
FOX = AskedQuestion("What is red?", (CHUNK,), ("fox",))
BEAR = AskedQuestion("What is brown?", (CHUNK,), ())
WAYS = ways_of(["brief"], ["frequency 0.5"])
PREFILL = PrefillResult(10, 0, 1.0)


class Layout:
    """A prompt's one segment names its system prompt and its question."""

    def lay_out(self, messages, documents, max_tokens):
        system = messages[0].content if messages[0].role == "system" else CONFIGURED
        return Prompt((Segment(SegmentKind.QUESTION, f"{system}|{messages[-1].content}", (max_tokens,)),))


class Engines:
    """An engine that knows what is red, refuses only with a system message, and loops without a penalty."""

    def __init__(self):
        self.firsts = []
        self.asked = []
        self.broken_after = None

    @asynccontextmanager
    async def plain(self):
        yield self

    async def stream(self, plan, sampling):
        system, question = plan.prompt.segments[0].key.split("|")
        if sampling.max_tokens == 1:
            self.firsts.append(system)
            yield GenerationStep("x", 1, PREFILL, finish_reason="length")
            return
        self.asked.append((system, question, sampling.frequency_penalty))
        if self.broken_after is not None and len(self.asked) > self.broken_after:
            raise asyncio.CancelledError
        if question == FOX.text:
            yield GenerationStep("the fox", 2, PREFILL, finish_reason="stop")
        elif system != CONFIGURED:
            yield GenerationStep("I do not know.", 4, PREFILL, finish_reason="stop")
        elif sampling.frequency_penalty:
            yield GenerationStep("A bear.", 2, PREFILL, finish_reason="stop")
        else:
            yield GenerationStep("a bear a bear " * 5, 20, PREFILL)
            yield GenerationStep("", 0, finish_reason="length")


def benchmark(engines):
    settings = PromptsSettings(at_once=1, max_tokens=20, seed=0)
    return PromptsBenchmark(engines, "toy", Layout(), "Be good.", WAYS, settings, lambda *_: None)


async def test_rows_say_what_each_way_does():
    engines = Engines()
    bench = benchmark(engines)
    await bench.run({"one": [FOX, BEAR], "other": [FOX]})
    result = bench.result(complete=True)
    assert result.texts[CONFIGURED] == "Be good."
    rows = {(row.set, row.prompt, row.sampling): row for row in result.rows}
    assert len(rows) == 9
    base, brief, frequency = (rows["one", way.prompt, way.sampling] for way in WAYS)
    assert (base.answerable, base.unanswerable) == (1, 1)
    assert (base.score, base.f1, base.exact_match, base.refused_unanswerable) == (0.5, 1, 1, 0)
    assert (base.looping, base.cut, base.tokens) == (0.5, 0.5, 11)
    assert base.differences == {}
    assert (brief.score, brief.refused_unanswerable, brief.refused_answerable, brief.looping) == (1, 1, 0, 0)
    assert (brief.differences["score"].mean, brief.differences["score"].low) == (0.5, 0)
    assert (frequency.score, frequency.looping, frequency.cut) == (0.5, 0, 0)
    assert frequency.differences["looping"].mean == -0.5
    assert rows["all", CONFIGURED, GREEDY].answerable == 2
    assert rows["all", CONFIGURED, GREEDY].f1 == 1
    # A set without unanswerable questions says nothing about them.
    assert "refused_unanswerable" not in rows["other", "brief", GREEDY].differences


async def test_each_prompt_is_prefilled_once_and_then_answered_in_its_ways():
    engines = Engines()
    await benchmark(engines).run({"one": [FOX]})
    assert len(engines.firsts) == 2
    assert engines.firsts[0] == CONFIGURED
    assert sorted(penalty for system, _, penalty in engines.asked if system == CONFIGURED) == [0.0, 0.5]


async def test_an_ended_run_has_the_questions_that_were_asked_in_all_ways():
    engines = Engines()
    engines.broken_after = 4
    bench = benchmark(engines)
    assert not bench.has_results
    with pytest.raises(asyncio.CancelledError):
        await bench.run({"one": [FOX, BEAR]})
    assert bench.has_results
    result = bench.result(complete=False)
    assert not result.complete
    assert [(Way(row.prompt, row.sampling), row.answerable, row.unanswerable) for row in result.rows] == [
        (way, 1, 0) for way in WAYS
    ]
