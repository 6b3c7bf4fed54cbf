"""The ways to ask for a prompt's first token: an engine, and how it attends to the facts."""

from collections.abc import Awaitable, Callable
from typing import NamedTuple
from uuid import uuid4

import msgspec

from cachectl.branches import KeptBranches, keyed
from examine.measuring.engines import Generation, generate
from examine.measuring.kv_paths import INSTANCE
from generator.engines.vllm_engine import VllmEngine
from protocol.dependency import TreePositions
from protocol.generation import Sampling
from protocol.plans import PrefillPlan
from ragtree_lab.graph.facts import FactsPrompt

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


def ways_of(engines: AttentionEngines, branches: KeptBranches) -> dict[str, Ask]:
    """How to ask these engines, by the names of ``WAYS``. ``branches`` are those that our own engine keeps."""

    def asking(engine: VllmEngine, plan: Callable[[FactsPrompt], PrefillPlan]) -> Ask:
        return lambda prompt: generate(engine, plan(prompt), FIRST_TOKEN)

    def computed(prompt: FactsPrompt) -> PrefillPlan:
        return prompt.dependency(TreePositions.DEPTH, reuse=False)

    def reused(prompt: FactsPrompt) -> PrefillPlan:
        return _dropping(prompt.dependency(TreePositions.DEPTH, reuse=True), branches)

    def plain(prompt: FactsPrompt, namespace: str) -> PrefillPlan:
        return PrefillPlan(uuid4().hex, INSTANCE, namespace, prompt.in_full)

    return {
        "self": asking(engines.ours, FactsPrompt.self_attention),
        "dependency": asking(engines.ours, computed),
        OURS: asking(engines.ours, reused),
        "vllm": asking(engines.vllm, lambda prompt: plain(prompt, uuid4().hex)),
        PREFIX_CACHE: asking(engines.vllm, lambda prompt: plain(prompt, "benchmark")),
    }


def _dropping(plan: PrefillPlan, branches: KeptBranches) -> PrefillPlan:
    """The plan with the branches that leave for its own, as the controller's plans have them."""
    assert plan.trees is not None, "the prompt has no facts"
    own = keyed(plan.namespace, plan.trees, plan.prompt.token_ids)
    behind = plan.prompt.token_count - plan.trees.end
    dropped = branches.keep(INSTANCE, plan.namespace, own, behind)
    return msgspec.structs.replace(plan, trees=msgspec.structs.replace(plan.trees, dropped=dropped))
