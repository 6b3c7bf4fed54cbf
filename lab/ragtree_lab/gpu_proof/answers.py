"""Answers to compare: with KV from a tier, and without any cache."""

from collections.abc import Sequence
from typing import NamedTuple

from examine.measuring.engines import Generation, generate
from examine.measuring.kv_paths import KvPath
from generator.engines.vllm_engine import VllmEngine
from protocol.generation import PrefillResult, Sampling
from protocol.kv import BY_TOKEN
from protocol.plans import PrefillPlan

TOLERANCE = {"float32": 1e-3, "bfloat16": 0.5}
"""How far log probabilities may be apart in each dtype. Those of a few layers differ by 0.1 in bfloat16."""

_ANSWER_TOKENS = 2
_LEAST_EQUAL = 0.5
"""The least share of equal answers. In bfloat16 about one in ten differs; with wrong KV, nearly all do."""


class Answer(NamedTuple):
    """The greedy tokens of an answer with their log probabilities, and its prefill."""

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    prefill: PrefillResult


async def ask(engine: VllmEngine, plan: PrefillPlan, max_tokens: int = _ANSWER_TOKENS) -> Answer:
    """The greedy answer to a plan."""
    return answer_of(await generate(engine, plan, Sampling(max_tokens, logprobs=True)))


def answer_of(came: Generation) -> Answer:
    """What a generation has answered."""
    return Answer(
        tuple(token.token_id for token in came.logprobs), tuple(token.logprob for token in came.logprobs), came.prefill
    )


async def uncached(engine: VllmEngine, path: KvPath, question: str, max_tokens: int = _ANSWER_TOKENS) -> Answer:
    """The answer without any cache."""
    return await ask(engine, uncached_plan(path, question), max_tokens)


def uncached_plan(path: KvPath, question: str) -> PrefillPlan:
    """A full prefill under a new namespace, in which nothing is cached."""
    return KvPath(path.segments, BY_TOKEN).plan(question, None, None)


def check_documents_matter(pairs: Sequence[tuple[Answer, Answer]]) -> None:
    """Raise ValueError if answers to other documents begin alike: wrong KV would not show then."""
    if sum(begins_alike(*pair) for pair in pairs) > len(pairs) // 4:
        raise ValueError("the model answers alike whatever the documents are, so wrong KV would not show")


def compare(pairs: Sequence[tuple[Answer, Answer]], tolerance: float) -> str:
    """How many of these pairs are equal. Raises ValueError if they differ by more than rounding explains.

    Step sizes change the rounding. So the log probabilities of a pair may differ by ``tolerance``, and a few answers
    may have another token where two are as likely. A longer answer, behind whose first such token everything differs,
    is equal if its first tokens are.
    """
    equal = sum(begins_alike(one, other) for one, other in pairs)
    differing = sum(not _agree(one, other, tolerance) for one, other in pairs)
    largest = max(_difference(one, other) for one, other in pairs)
    figure = f"{equal} of {len(pairs)} equal, log probabilities within {largest:.2g}"
    if differing or equal < _LEAST_EQUAL * len(pairs):
        raise ValueError(f"{differing} answers are wrong: {figure}")
    return figure


def begins_alike(one: Answer, other: Answer) -> bool:
    """Whether the first tokens of two answers are equal."""
    return bool(one.tokens) and one.tokens[:_ANSWER_TOKENS] == other.tokens[:_ANSWER_TOKENS]


def _agree(one: Answer, other: Answer, tolerance: float) -> bool:
    return bool(one.tokens) and bool(other.tokens) and _difference(one, other) <= tolerance


def _difference(one: Answer, other: Answer) -> float:
    """The largest difference of log probabilities up to the first token that differs."""
    largest = 0.0
    for mine, theirs, left, right in zip(one.tokens, other.tokens, one.logprobs, other.logprobs, strict=False):
        largest = max(largest, abs(left - right))
        if mine != theirs:
            break
    return largest
