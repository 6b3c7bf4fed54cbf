"""How near answers under dependency attention come to those under self-attention, over the same facts.

All run on the same engine. The variants of dependency attention compute all trees anew, but for the ones that reuse KV.
"""

import asyncio
from collections.abc import Sequence
from statistics import fmean
from typing import NamedTuple

import msgspec

from examine.composing.rows import agreement
from examine.evaluation.scores import f1
from examine.measuring import Progress
from examine.measuring.engines import Generation, generate
from examine.measuring.statistics import bootstrap_interval
from protocol.dependency import TreePositions
from protocol.generation import Sampling
from protocol.parts import Generator
from ragtree_lab.graph.attention.prompt_groups import ANSWER_TOKENS, PromptGroup

_ALTERNATIVES = 20


class QualityRow(msgspec.Struct, frozen=True):
    """One way beside self-attention, over ``questions`` of a ``set`` with about ``tokens`` tokens of facts.

    ``first_token_agreement`` is how often answers begin with the same token. ``kl`` is the mean divergence of their
    first tokens' distributions from those of self-attention, in nats, over its most likely tokens. ``f1`` and
    ``full_f1`` are mean scores, from 0 to 1, and ``difference`` is the 95 % bootstrap interval of their difference.
    """

    set: str
    tokens: int
    way: str
    questions: int
    first_token_agreement: float
    kl: float
    f1: float
    full_f1: float
    difference: tuple[float, float]


class _Compared(NamedTuple):
    """Two answers to one question, whose right ones are ``answers``: under self-attention (``full``), and another."""

    answers: Sequence[str]
    full: Generation
    other: Generation


async def compare_answers(
    engine: Generator, group: PromptGroup, questions: int, progress: Progress
) -> list[QualityRow]:
    """Compare the answers to up to ``questions`` of a group, with self-attention itself as one of the ways.

    Raises what the engine raises.
    """
    prompts = group.to_answer(questions)
    step = f"comparing answers, {group}"
    sampling = Sampling(ANSWER_TOKENS, logprobs=True, alternatives=_ALTERNATIVES)
    compared: dict[str, list[_Compared]] = {}
    for number, prompt in enumerate(prompts):
        progress(step, number, len(prompts))
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
            compared.setdefault(name, []).append(_Compared(prompt.facts.answers, full, answer))
    progress(step, len(prompts), len(prompts))
    return [_row(group, name, pairs) for name, pairs in compared.items()]


def _row(group: PromptGroup, way: str, compared: Sequence[_Compared]) -> QualityRow:
    first = [agreement(one.full.logprobs[:1], one.other.logprobs[:1]) for one in compared]
    scores = [(f1(one.other.text, one.answers), f1(one.full.text, one.answers)) for one in compared]
    return QualityRow(
        group.set,
        group.tokens,
        way,
        len(compared),
        fmean(one.agreed for one in first),
        fmean(one.divergences[0] for one in first),
        fmean(own for own, _ in scores),
        fmean(full for _, full in scores),
        bootstrap_interval([own - full for own, full in scores], 0),
    )
