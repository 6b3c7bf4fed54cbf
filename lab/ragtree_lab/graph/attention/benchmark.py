"""Attention over facts: self-attention over all paths in full against dependency attention over their trees.

The prompts have the paths that searches in real graphs return. Most of them only warm the caches up; the last ones but
some are timed, alone and in all ways in turn; throughput is that of the last ones, with a number of them at once, until
each has its first token. Of the prompts that warm up, plain vLLM gets the last ones, more than its KV cache holds.

The baselines are our own engine (``self``) and plain vLLM, with every path in full: with its prefix cache, and without
any of it (``vllm``: each prompt has a salt of its own). The system prompt's KV is ready in all but ``vllm``.

What our engine keeps of facts is chosen as the controller chooses it, by its default policy.

Limits: no queue, so nothing to look ahead to, and no search; one instance of each engine.
"""

import asyncio
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from statistics import fmean, median
from typing import NamedTuple

from cachectl.branches import KeptBranches
from cachectl.policies import create_policy
from cachectl.policies.lookahead import Lookahead
from cachectl.settings import ControllerSettings
from examine.measuring import Progress
from examine.measuring.engines import generate
from generator.engines.vllm_engine import VllmEngine
from generator.models import ModelStore
from generator.prompts.layout import SegmentLayout
from generator.prompts.tokenizer import ModelTokenizer
from generator.settings import GeneratorSettings
from protocol.errors import ConfigError
from protocol.generation import ComposingInfo
from protocol.kv import KvMemory
from ragtree_lab.graph.attention.prompt_groups import PromptGroup, PromptGroups, least_questions
from ragtree_lab.graph.attention.quality import compare_answers
from ragtree_lab.graph.attention.results import AttentionResult, AttentionRow, Slo
from ragtree_lab.graph.attention.slo_throughput import COMPARED, SloThroughput, sustained_rates
from ragtree_lab.graph.attention.ways import FIRST_TOKEN, OURS, PREFIX_CACHE, WAYS, Ask, AttentionEngines, ways_of
from ragtree_lab.graph.facts import Facts, FactsPrompt
from ragtree_lab.measuring.engines import ComparedEngines

_WARM_VLLM = 24
"""Prompts that warm plain vLLM up. Its KV cache of 1 GiB holds fewer."""

_AT_ONCE = 8


class _Measured(NamedTuple):
    prompt: FactsPrompt
    ttft_ms: Mapping[str, float]
    hit_tokens: int


class _Asked(NamedTuple):
    """What came of a group: each timed prompt, and the seconds of those at once, by way."""

    row: AttentionRow
    measured: Sequence[_Measured]
    at_once_s: Mapping[str, float]
    slo: Slo | None


class AttentionBenchmark:
    """Measures engines of one model. ``progress`` is called with (step, done, total).

    Without ``slo``, throughput at the SLO is not measured. The answers to up to ``answers`` questions of each set and
    size are compared.
    """

    def __init__(
        self,
        engines: ComparedEngines,
        layout: SegmentLayout,
        slo: SloThroughput | None,
        answers: int,
        progress: Progress,
    ) -> None:
        self._engines = engines
        self._layout = layout
        self._slo = slo
        self._answers = answers
        self._progress = progress

    @classmethod
    def over(
        cls, generator: GeneratorSettings, cache_dir: Path, slo: SloThroughput | None, answers: int, progress: Progress
    ) -> "AttentionBenchmark":
        """The benchmark of a generator with these settings, whose model is in ``cache_dir`` or is put there."""
        models = ModelStore(cache_dir)
        layout = SegmentLayout.configured(ModelTokenizer(models.resolve(generator.model)), generator)
        return cls(ComparedEngines(generator, models, at_once=2), layout, slo, answers, progress)

    async def run(self, sets: Mapping[str, Sequence[Facts]], context_tokens: Sequence[int]) -> AttentionResult:
        """Measure the facts of each set, cut to each of ``context_tokens``.

        Questions with fewer tokens of facts than three quarters of these are left out. Raises ConfigError if the engine
        has no attention within trees, and what the engines raise.
        """
        async with AsyncExitStack() as running:
            folder = running.enter_context(tempfile.TemporaryDirectory(prefix="ragtree-bench-"))
            engines = AttentionEngines(
                await running.enter_async_context(self._engines.caching(Path(folder), disk_gib=0)),
                await running.enter_async_context(self._engines.plain()),
            )
            pages, composing = await _composing(engines.ours)
            made = PromptGroups(self._layout, pages.paging, self._arriving)
            groups = made.over(sets, context_tokens)
            ways = ways_of(engines, _branches(composing.branch_tokens))
            asked = [await self._ask(engines.ours, ways, group) for group in groups]
            answered = [await compare_answers(engines.ours, group, self._answers, self._progress) for group in groups]
        measured = [one for each in asked for one in each.measured]
        # As many prompts come at once as are timed.
        throughput = {way: len(measured) / sum(each.at_once_s[way] for each in asked) for way in WAYS}
        slo = next((each.slo for each in asked if each.slo), None)
        at_slo = sustained_rates(slo) if slo else {}
        return AttentionResult(
            attention=[each.row for each in asked],
            ttft_ratio=_ratios(measured),
            throughput=throughput,
            throughput_ratio=_ours_over_others(throughput),
            throughput_at_slo=at_slo,
            throughput_at_slo_ratio=_ours_over_others(at_slo),
            slo=slo,
            no_slo="" if slo else self._too_few(),
            quality=[row for rows in answered for row in rows],
        )

    def _arriving(self, spare: int) -> int:
        return self._slo.taken(spare) if self._slo else 0

    def _too_few(self) -> str:
        if self._slo is None:
            return ""
        return f"no set has {least_questions(self._slo.least_prompts)} questions with so many tokens of facts"

    async def _ask(self, ours: VllmEngine, ways: Mapping[str, Ask], group: PromptGroup) -> _Asked:
        await generate(ours, group.warming[0].front, FIRST_TOKEN)
        await self._warm_up(ways, group)
        # What arrives at rates warms the caches up for what is timed.
        slo = await self._at_slo(self._slo, ways, group) if self._slo and group.arriving else None
        measured = await self._ask_in_turn(ways, group.timed, f"asking, {group}")
        at_once_s = await self._ask_at_once(ways, group)
        return _Asked(_row(group.set, measured), measured, at_once_s, slo)

    async def _at_slo(self, throughput: SloThroughput, ways: Mapping[str, Ask], group: PromptGroup) -> Slo:
        idle, arriving = group.arriving[: throughput.idle_prompts], group.arriving[throughput.idle_prompts :]
        compared = {way: ways[way] for way in COMPARED}
        asked = await self._ask_in_turn(compared, idle, f"asking idle engines, {group}")
        idle_ms = {way: median(one.ttft_ms[way] for one in asked) for way in compared}
        return await throughput.measure(compared, idle_ms, group, arriving)

    async def _warm_up(self, ways: Mapping[str, Ask], group: PromptGroup) -> None:
        """Fill the caches. Sequential, because what comes later shall find what came before."""
        prompts = group.warming
        for number, prompt in enumerate(prompts):
            self._progress(f"warming up, {group}", number, len(prompts))
            await ways[OURS](prompt)
            if len(prompts) - number <= _WARM_VLLM:
                await ways[PREFIX_CACHE](prompt)
        self._progress(f"warming up, {group}", len(prompts), len(prompts))

    async def _ask_in_turn(self, ways: Mapping[str, Ask], prompts: Sequence[FactsPrompt], step: str) -> list[_Measured]:
        """Ask each prompt in all ways."""
        measured: list[_Measured] = []
        for number, prompt in enumerate(prompts):
            self._progress(step, number, len(prompts))
            came = {way: await ask(prompt) for way, ask in ways.items()}
            times = {way: one.ttft_ms for way, one in came.items()}
            measured.append(_Measured(prompt, times, came[OURS].prefill.composed_tokens))
        self._progress(step, len(prompts), len(prompts))
        return measured

    async def _ask_at_once(self, ways: Mapping[str, Ask], group: PromptGroup) -> dict[str, float]:
        """The seconds until all prompts have their first token, with several at once."""
        seconds: dict[str, float] = {}
        for number, (way, ask) in enumerate(ways.items()):
            self._progress(f"asking several at once, {group}", number, len(ways))
            waiting = iter(group.at_once)

            async def work(ask: Ask = ask, waiting: Iterator[FactsPrompt] = waiting) -> None:
                for prompt in waiting:
                    await ask(prompt)

            began = time.perf_counter()
            await asyncio.gather(*(work() for _ in range(_AT_ONCE)))
            seconds[way] = time.perf_counter() - began
        self._progress(f"asking several at once, {group}", len(ways), len(ways))
        return seconds


async def _composing(engine: VllmEngine) -> tuple[KvMemory, ComposingInfo]:
    """How the engine keeps KV, and how it composes."""
    info = await engine.info()
    if info.kv is None or info.composing is None:
        raise ConfigError(info.not_composing or "the engine keeps no KV, so there is nothing to compose")
    if info.composing.no_trees:
        raise ConfigError(info.composing.no_trees)
    return info.kv, info.composing


def _branches(room: int) -> KeptBranches:
    policy = ControllerSettings().policy
    # Branches of one model at nearly one depth: each token costs as much as any other.
    return KeptBranches(lambda: create_policy(policy, Lookahead()), room, lambda _, new: float(new))


def _row(name: str, measured: Sequence[_Measured]) -> AttentionRow:
    prompts = [one.prompt for one in measured]
    pairs, kept = sum(prompt.pairs for prompt in prompts), sum(prompt.tree_pairs for prompt in prompts)
    return AttentionRow(
        name,
        len(prompts),
        fmean(prompt.context_tokens for prompt in prompts),
        fmean(prompt.tree_tokens for prompt in prompts),
        1 - kept / pairs,
        sum(one.hit_tokens for one in measured) / sum(prompt.tree_tokens for prompt in prompts),
        {way: _mean_ms(measured, way) for way in WAYS},
    )


def _mean_ms(measured: Sequence[_Measured], way: str) -> float:
    # Not the median: a prompt finds most of its facts or few of them, so that it jumps from run to run.
    return fmean(one.ttft_ms[way] for one in measured)


def _ratios(measured: Sequence[_Measured]) -> dict[str, float]:
    def over(slow: str, fast: str) -> float:
        return _mean_ms(measured, slow) / _mean_ms(measured, fast)

    baselines = [way for way in WAYS if way != OURS]
    return {way: over(way, OURS) for way in baselines} | {"self_over_dependency": over("self", "dependency")}


def _ours_over_others(rates: Mapping[str, float]) -> dict[str, float]:
    if OURS not in rates:
        return {}
    return {way: rates[OURS] / rate for way, rate in rates.items() if way != OURS}
