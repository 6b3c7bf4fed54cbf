"""Attention over facts: self-attention over all paths in full against dependency attention over their trees.

The prompts have the paths that searches in real graphs return. Each question is asked once, in a shuffled order, so
what is reused are other questions' facts and no prompt of a question asked before. Most prompts only warm the caches
up; the last ones but some are timed, alone and in all ways in turn; throughput is that of the last ones, with a number
of them at once, until each has its first token. The baselines are our own engine (``self``) and plain vLLM, with every
path in full: with its prefix cache, and without any of it (``vllm``: each prompt has a salt of its own). The system
prompt's KV is ready in all but ``vllm``. Of the prompts that warm up, plain vLLM gets the last ones, more than its KV
cache holds.

Quality compares dependency attention with self-attention over the same facts, on the same engine. Its variants compute
all trees anew, but for the one that moves KV.

Limits: no controller and no search; one instance of each engine.
"""

import asyncio
import random
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from statistics import fmean, median
from typing import NamedTuple
from uuid import uuid4

import msgspec

from benchmarks.graph.facts import Facts, FactsPrompt
from benchmarks.graph.quality import Compared, QualityRow, quality_row
from benchmarks.measuring.engines import INSTANCE, EngineMaker, Generation, generate
from benchmarks.measuring.progress import Progress
from generator.engines.vllm_engine import VllmEngine
from generator.models import ModelStore
from generator.prompts.layout import SegmentLayout
from generator.prompts.tokenizer import ModelTokenizer
from generator.settings import GeneratorSettings
from protocol.dependency import TreePositions
from protocol.errors import ConfigError
from protocol.generation import Sampling
from protocol.plans import PrefillPlan
from protocol.prompts import ChatMessage, Prompt

_MOST_TIMED = 16
"""Prompts of one row whose times are measured, and as many again at once."""

_WARM_VLLM = 24
"""Prompts that warm plain vLLM up. Its KV cache of 1 GiB holds fewer."""

_AT_ONCE = 8
_ANSWER_TOKENS = 32
_ALTERNATIVES = 20
_FIRST_TOKEN = Sampling(1)

_OURS = "dependency_cached"
WAYS = ("self", "dependency", _OURS, "vllm", "vllm_prefix")


class AttentionRow(msgspec.Struct, frozen=True):
    """Prompts of one set with about equally many tokens of facts.

    ``context_tokens`` are those of all paths in full, and ``tree_tokens`` those that their trees have, as means.
    ``redundant_share`` is the share of attention over all paths, in pairs of tokens, that the trees do without.
    ``hit_share`` is the share of the trees' tokens whose KV earlier prompts had. ``ttft_ms`` are medians.
    """

    set: str
    prompts: int
    context_tokens: float
    tree_tokens: float
    redundant_share: float
    hit_share: float
    ttft_ms: dict[str, float]


class AttentionResult(msgspec.Struct, frozen=True):
    """Figures on attention over facts.

    ``ttft_ratio`` has the median ratio of times to first token, prompt by prompt: of each baseline over dependency
    attention with its cache, and of ``self`` over dependency attention without (``self_over_dependency``).
    ``throughput`` is in prompts a second, and ``throughput_ratio`` is ours over each baseline's. ``quality`` compares
    answers with those of self-attention over the same facts.
    """

    attention: list[AttentionRow]
    ttft_ratio: dict[str, float]
    throughput: dict[str, float]
    throughput_ratio: dict[str, float]
    quality: list[QualityRow]


class _Measured(NamedTuple):
    prompt: FactsPrompt
    ttft_ms: Mapping[str, float]
    hit_tokens: int


class _Engines(NamedTuple):
    ours: VllmEngine
    vllm: VllmEngine


class AttentionBenchmark:
    """Measures engines of one model. ``progress`` is called with (step, done, total)."""

    def __init__(
        self, engines: EngineMaker, layout: SegmentLayout, tokenizer: ModelTokenizer, progress: Progress
    ) -> None:
        self._engines = engines
        self._layout = layout
        self._tokenizer = tokenizer
        self._progress = progress

    @classmethod
    def over(cls, generator: GeneratorSettings, cache_dir: Path, progress: Progress) -> "AttentionBenchmark":
        """The benchmark of a generator with these settings, whose model is in ``cache_dir`` or is put there."""
        models = ModelStore(cache_dir)
        tokenizer = ModelTokenizer(models.resolve(generator.model))
        layout = SegmentLayout.configured(tokenizer, generator)
        return cls(EngineMaker(generator, models, at_once=2), layout, tokenizer, progress)

    async def run(self, sets: Mapping[str, Sequence[Facts]], context_tokens: Sequence[int]) -> AttentionResult:
        """Measure the facts of each set, cut to each of ``context_tokens``.

        Questions with fewer tokens of facts than three quarters of these are left out. Raises ConfigError if the engine
        has no attention within trees, and what the engines raise.
        """
        async with AsyncExitStack() as running:
            folder = running.enter_context(tempfile.TemporaryDirectory(prefix="ragtree-bench-"))
            engines = _Engines(
                await running.enter_async_context(self._engines.caching(Path(folder), disk_gib=0)),
                await running.enter_async_context(self._engines.plain()),
            )
            page_tokens = await _page_tokens(engines.ours)
            rows: list[AttentionRow] = []
            measured: list[_Measured] = []
            rest: list[FactsPrompt] = []
            for name, facts in sets.items():
                for tokens in context_tokens:
                    prompts = self._prompts(facts, tokens, page_tokens)
                    part = min(_MOST_TIMED, len(prompts) // 3)
                    if not part:
                        continue
                    warming, timed, last = prompts[: -2 * part], prompts[-2 * part : -part], prompts[-part:]
                    step = f"{name}, {tokens:,} tokens"
                    await self._warm_up(engines, warming, f"warming up, {step}")
                    asked = await self._ask_in_turn(engines, timed, f"asking, {step}")
                    rows.append(_row(name, asked))
                    measured += asked
                    rest += last
            if not rows:
                raise ConfigError("no set has three questions with so many tokens of facts", "context_tokens")
            throughput = await self._throughput(engines, rest)
            quality = await self._quality(engines.ours, [one.prompt for one in measured])
        return AttentionResult(
            rows,
            _ratios(measured),
            throughput,
            {name: throughput[_OURS] / rate for name, rate in throughput.items() if name != _OURS},
            quality,
        )

    def _prompts(self, facts: Sequence[Facts], tokens: int, page_tokens: int) -> list[FactsPrompt]:
        encode = self._tokenizer.encode
        # A namespace of its own for each kind of prompt: its caches begin empty.
        namespace = uuid4().hex
        cut = [one.within(tokens, encode) for one in facts]
        made = [FactsPrompt(one, encode, self._lay_out, namespace, page_tokens) for one in cut if one.paths]
        enough = [prompt for prompt in made if prompt.context_tokens >= 0.75 * tokens]
        random.Random(1).shuffle(enough)  # noqa: S311 - a repeatable order
        return enough

    def _lay_out(self, question: str) -> Prompt:
        return self._layout.lay_out([ChatMessage("user", question)], [], _ANSWER_TOKENS)

    async def _warm_up(self, engines: _Engines, prompts: Sequence[FactsPrompt], step: str) -> None:
        """Fill the caches. Sequential, because what comes later shall find what came before."""
        await generate(engines.ours, prompts[0].front, _FIRST_TOKEN)
        for number, prompt in enumerate(prompts):
            self._progress(step, number, len(prompts))
            ways = _ways(engines, prompt)
            await ways[_OURS]()
            if len(prompts) - number <= _WARM_VLLM:
                await ways["vllm_prefix"]()
        self._progress(step, len(prompts), len(prompts))

    async def _ask_in_turn(self, engines: _Engines, prompts: Sequence[FactsPrompt], step: str) -> list[_Measured]:
        """Ask each prompt in all ways."""
        asked: list[_Measured] = []
        for number, prompt in enumerate(prompts):
            self._progress(step, number, len(prompts))
            came = {name: await ask() for name, ask in _ways(engines, prompt).items()}
            times = {name: one.ttft_ms for name, one in came.items()}
            asked.append(_Measured(prompt, times, came[_OURS].prefill.composed_tokens))
        self._progress(step, len(prompts), len(prompts))
        return asked

    async def _throughput(self, engines: _Engines, prompts: Sequence[FactsPrompt]) -> dict[str, float]:
        """Prompts a second, with several at once."""
        rates: dict[str, float] = {}
        for number, name in enumerate(WAYS):
            self._progress("measuring throughput", number, len(WAYS))
            waiting = iter(prompts)

            async def work(name: str = name, waiting: Iterator[FactsPrompt] = waiting) -> None:
                for prompt in waiting:
                    await _ways(engines, prompt)[name]()

            began = time.perf_counter()
            await asyncio.gather(*(work() for _ in range(_AT_ONCE)))
            rates[name] = len(prompts) / (time.perf_counter() - began)
        self._progress("measuring throughput", len(WAYS), len(WAYS))
        return rates

    async def _quality(self, engine: VllmEngine, prompts: Sequence[FactsPrompt]) -> list[QualityRow]:
        """Answers under dependency attention beside those of self-attention."""
        sampling = Sampling(_ANSWER_TOKENS, logprobs=True, alternatives=_ALTERNATIVES)
        compared: dict[str, list[Compared]] = {}
        for number, prompt in enumerate(prompts):
            self._progress("comparing answers", number, len(prompts))
            plans = {
                "self again": prompt.self_attention(),
                "depth": prompt.dependency(TreePositions.DEPTH, reuse=False),
                "depth, reused": prompt.dependency(TreePositions.DEPTH, reuse=True),
                "preorder": prompt.dependency(TreePositions.PREORDER, reuse=False),
                "preorder, moved": prompt.dependency(TreePositions.PREORDER, reuse=True),
                "depth, blind": prompt.dependency(TreePositions.DEPTH, reuse=False, blind=True),
            }
            full, *answers = await asyncio.gather(
                generate(engine, prompt.self_attention(), sampling),
                *(generate(engine, plan, sampling) for plan in plans.values()),
            )
            for name, answer in zip(plans, answers, strict=True):
                compared.setdefault(name, []).append(Compared(prompt.facts.answers, full, answer))
        self._progress("comparing answers", len(prompts), len(prompts))
        return [quality_row(name, pairs) for name, pairs in compared.items()]


def _ways(engines: _Engines, prompt: FactsPrompt) -> dict[str, Callable[[], Awaitable[Generation]]]:
    """How to ask for a prompt's first token, by the names of ``WAYS``."""

    def asking(engine: VllmEngine, plan: PrefillPlan) -> Callable[[], Awaitable[Generation]]:
        return lambda: generate(engine, plan, _FIRST_TOKEN)

    def plain(namespace: str) -> PrefillPlan:
        return PrefillPlan(uuid4().hex, INSTANCE, namespace, prompt.in_full)

    return {
        "self": asking(engines.ours, prompt.self_attention()),
        "dependency": asking(engines.ours, prompt.dependency(TreePositions.DEPTH, reuse=False)),
        _OURS: asking(engines.ours, prompt.dependency(TreePositions.DEPTH, reuse=True)),
        "vllm": asking(engines.vllm, plain(uuid4().hex)),
        "vllm_prefix": asking(engines.vllm, plain("benchmark")),
    }


async def _page_tokens(engine: VllmEngine) -> int:
    info = await engine.info()
    if info.kv is None or info.composing is None:
        raise ConfigError(info.not_composing or "the engine keeps no KV, so there is nothing to compose")
    if info.composing.no_trees:
        raise ConfigError(info.composing.no_trees)
    return info.kv.page_tokens


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
        {way: median(one.ttft_ms[way] for one in measured) for way in WAYS},
    )


def _ratios(measured: Sequence[_Measured]) -> dict[str, float]:
    def over(slow: str, fast: str) -> float:
        return median(one.ttft_ms[slow] / one.ttft_ms[fast] for one in measured)

    baselines = [way for way in WAYS if way != _OURS]
    return {way: over(way, _OURS) for way in baselines} | {"self_over_dependency": over("self", "dependency")}
