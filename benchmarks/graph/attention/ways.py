"""The ways to ask for a prompt's first token: an engine, and how it attends to the facts."""

from collections.abc import Awaitable, Callable
from typing import NamedTuple
from uuid import uuid4

from benchmarks.graph.facts import FactsPrompt
from benchmarks.measuring.engines import INSTANCE, Generation, generate
from generator.engines.vllm_engine import VllmEngine
from protocol.dependency import TreePositions
from protocol.generation import Sampling
from protocol.plans import PrefillPlan

FIRST_TOKEN = Sampling(1)

OURS = "dependency_cached"
PREFIX_CACHE = "vllm_prefix"
WAYS = ("self", "dependency", OURS, "vllm", PREFIX_CACHE)

Ask = Callable[[FactsPrompt], Awaitable[Generation]]
"""Asks for a prompt's first token. Raises what the engine raises."""


class AttentionEngines(NamedTuple):
    """The stack's own engine, and plain vLLM."""

    ours: VllmEngine
    vllm: VllmEngine


def ways_of(engines: AttentionEngines) -> dict[str, Ask]:
    """How to ask these engines, by the names of ``WAYS``."""

    def asking(engine: VllmEngine, plan: Callable[[FactsPrompt], PrefillPlan]) -> Ask:
        return lambda prompt: generate(engine, plan(prompt), FIRST_TOKEN)

    def in_trees(*, reuse: bool) -> Callable[[FactsPrompt], PrefillPlan]:
        return lambda prompt: prompt.dependency(TreePositions.DEPTH, reuse=reuse)

    def plain(prompt: FactsPrompt, namespace: str) -> PrefillPlan:
        return PrefillPlan(uuid4().hex, INSTANCE, namespace, prompt.in_full)

    return {
        "self": asking(engines.ours, FactsPrompt.self_attention),
        "dependency": asking(engines.ours, in_trees(reuse=False)),
        OURS: asking(engines.ours, in_trees(reuse=True)),
        "vllm": asking(engines.vllm, lambda prompt: plain(prompt, uuid4().hex)),
        PREFIX_CACHE: asking(engines.vllm, lambda prompt: plain(prompt, "benchmark")),
    }
