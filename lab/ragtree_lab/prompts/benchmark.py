"""Prompts: answers by system prompt and by sampling, on questions whose documents hold an answer or do not.

All ways run on one engine, question by question, so that the machine and the batch affect all alike. The answers of a
question are decoded together, those of a system prompt behind one prefill. The baseline is the configured system prompt
with greedy decoding. A candidate is a system message, which replaces the configured prompt; the preamble stays.

Limits: one model. Its words decide what counts as a refusal. F1 prefers short answers; the subspan match does not.
"""

import asyncio
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from uuid import uuid4

import msgspec

from examine.measuring import Progress
from examine.measuring.engines import generate
from examine.measuring.kv_paths import INSTANCE
from generator.engines.vllm_engine import VllmEngine
from protocol.generation import Sampling
from protocol.parts import PromptLayout
from protocol.plans import PrefillPlan
from protocol.prompts import ChatMessage, Prompt
from ragtree_lab.measuring.engines import ComparedEngines
from ragtree_lab.prompts.questions import AskedQuestion
from ragtree_lab.prompts.rows import ALL, Given, PromptRow, rows_of
from ragtree_lab.prompts.ways import CONFIGURED, GREEDY, SAMPLINGS, SYSTEM_PROMPTS, Way

_NAMESPACE = "benchmark"
_ASKING = "asking"


class PromptsSettings(msgspec.Struct, frozen=True):
    """How to ask: ``at_once`` questions together, for ``max_tokens`` an answer. ``seed`` is for the intervals."""

    at_once: int
    max_tokens: int
    seed: int


class PromptsResult(msgspec.Struct, frozen=True):
    """One row for each way and set, and over all sets, the baseline first; ``texts`` are the system prompts by name.

    ``complete`` is False if the run was ended before everything was measured.
    """

    model: str
    max_tokens: int
    texts: dict[str, str]
    rows: list[PromptRow]
    complete: bool = True


class PromptsBenchmark:
    """Asks questions in each of the ``ways`` on one engine of the model ``model``, whose prompts ``layout`` lays out.

    ``configured`` is the text of the configured system prompt.
    """

    def __init__(
        self,
        engines: ComparedEngines,
        model: str,
        layout: PromptLayout,
        configured: str,
        ways: Sequence[Way],
        settings: PromptsSettings,
        progress: Progress,
    ) -> None:
        self._engines = engines
        self._model = model
        self._layout = layout
        candidates = {way.prompt: SYSTEM_PROMPTS[way.prompt] for way in ways if way.prompt != CONFIGURED}
        self._texts = {CONFIGURED: configured, **candidates}
        self._ways = ways
        self._settings = settings
        self._progress = progress
        self._asked: dict[str, list[AskedQuestion]] = {}
        self._given: dict[str, dict[Way, list[Given]]] = {}

    @property
    def has_results(self) -> bool:
        """Whether any question has been answered in every way."""
        return any(self._asked.values())

    def result(self, *, complete: bool) -> PromptsResult:
        """What has been measured so far. An unfinished set has rows of the questions that were asked."""
        seed = self._settings.seed
        rows = [
            row for name, asked in self._asked.items() if asked for row in rows_of(name, asked, self._given[name], seed)
        ]
        if len(self._asked) > 1:
            pooled = {way: [one for given in self._given.values() for one in given[way]] for way in self._ways}
            rows += rows_of(ALL, [one for asked in self._asked.values() for one in asked], pooled, seed)
        return PromptsResult(self._model, self._settings.max_tokens, self._texts, rows, complete)

    async def run(self, sets: Mapping[str, Sequence[AskedQuestion]]) -> None:
        """Ask each set's questions in all ways, the sets in turn. Raises what layout and engine raise."""
        self._asked = {name: [] for name in sets}
        self._given = {name: {way: [] for way in self._ways} for name in sets}
        # In turn, so that an interrupted run has asked of all.
        questions = [
            (name, question)
            for together in zip_longest(*sets.values())
            for name, question in zip(sets, together, strict=True)
            if question is not None
        ]
        self._progress(_ASKING, 0, len(questions))
        async with self._engines.plain() as engine:
            for begin in range(0, len(questions), self._settings.at_once):
                handful = questions[begin : begin + self._settings.at_once]
                came = await asyncio.gather(*(self._answers(engine, question) for _, question in handful))
                for (name, question), answers in zip(handful, came, strict=True):
                    self._asked[name].append(question)
                    for way, answer in answers.items():
                        self._given[name][way].append(answer)
                self._progress(_ASKING, begin + len(handful), len(questions))

    async def _answers(self, engine: VllmEngine, question: AskedQuestion) -> dict[Way, Given]:
        prompts = {name: self._laid_out(text, name, question) for name, text in self._texts.items()}

        async def answer(way: Way) -> tuple[Way, Given]:
            sampling = Sampling(1, frequency_penalty=0.0) if way.sampling == GREEDY else SAMPLINGS[way.sampling]
            limited = msgspec.structs.replace(sampling, max_tokens=self._settings.max_tokens)
            return way, await _given(engine, prompts[way.prompt], limited)

        # The first token of each prompt leaves its KV in vLLM's prefix cache, from which its answers are then decoded.
        for prompt in prompts.values():
            await _given(engine, prompt, Sampling(1))
        return dict(await asyncio.gather(*map(answer, self._ways)))

    def _laid_out(self, text: str, name: str, question: AskedQuestion) -> Prompt:
        system = [] if name == CONFIGURED else [ChatMessage("system", text)]
        messages = [*system, ChatMessage("user", question.text)]
        return self._layout.lay_out(messages, question.chunks, self._settings.max_tokens)


async def _given(engine: VllmEngine, prompt: Prompt, sampling: Sampling) -> Given:
    answer = await generate(engine, PrefillPlan(uuid4().hex, INSTANCE, _NAMESPACE, prompt), sampling)
    return Given(answer.text, answer.tokens, answer.finish_reason == "length")
