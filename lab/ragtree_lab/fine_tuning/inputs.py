"""What a model reads of an exercise: token ids, who attends to whom, positions, and what it should answer."""

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import torch

from generator.composing.dependency.forest import Forest
from protocol.dependency import DependencyTrees
from ragtree_lab.fine_tuning.exercise import Exercise


class Inputs(NamedTuple):
    """One row of tokens for a model of transformers.

    ``token_ids`` and ``positions`` have the shape [1, tokens]. ``mask`` is added to the products of queries and keys,
    shape [1, 1, tokens, tokens]. The tokens at ``places`` predict those in ``wanted``, which belong to answers number
    ``answers``; all three have the shape [predicted].
    """

    token_ids: torch.Tensor
    positions: torch.Tensor
    mask: torch.Tensor
    places: torch.Tensor
    wanted: torch.Tensor
    answers: torch.Tensor


def in_trees(exercise: Exercise) -> Inputs:
    """The exercise with its facts in trees, as an engine with dependency attention computes it."""
    return _inputs(exercise.in_trees, exercise, exercise.trees)


def in_full(exercise: Exercise) -> Inputs:
    """The exercise with every path in full, as an engine with self-attention computes it."""
    return _inputs(exercise.in_full, exercise, None)


def attends(front: int, trees: DependencyTrees | None, asked: Sequence[int]) -> torch.Tensor:
    """Who attends to whom, shape [tokens, tokens]: row v has the tokens that v attends to (DepCache, Algorithm 1).

    Behind ``front`` tokens with ``trees``, there are ``asked`` runs of tokens. Each of them attends to the front and to
    itself, so each is computed as if it stood there alone.
    """
    total = front + sum(asked)
    mask = torch.ones(total, total, dtype=torch.bool).tril()
    if trees is not None:
        forest = Forest(trees)
        rows = slice(forest.place.start, forest.place.end)
        mask[rows, forest.front : forest.place.start] = False
        # An ancestor comes before a token. So this also makes a branch's own tokens attend causally.
        branch_of = forest.branch_of_tokens
        mask[rows, rows] = forest.ancestors[branch_of][:, branch_of].tril()
    for end, count in zip(accumulate(asked, initial=front), asked, strict=False):
        mask[end : end + count, front:end] = False
    return mask


def _inputs(front: Sequence[int], exercise: Exercise, trees: DependencyTrees | None) -> Inputs:
    """The questions and answers behind a front, each at the positions that it would have there alone."""
    ids = list(front)
    positions = [torch.arange(len(front))]
    if trees is not None:
        forest = Forest(trees)
        positions[0][forest.place.start : forest.place.end] = forest.token_positions(torch.device("cpu"))
    places: list[int] = []
    wanted: list[int] = []
    answers: list[int] = []
    lengths: list[int] = []
    for number, (question, answer, _) in enumerate(exercise.asked):
        first = len(ids) + len(question) - 1
        places += range(first, first + len(answer))
        wanted += answer
        answers += [number] * len(answer)
        # The last token of an answer predicts nothing that is known.
        asked = (*question, *answer[:-1])
        ids += asked
        positions.append(torch.arange(len(front), len(front) + len(asked)))
        lengths.append(len(asked))
    mask = attends(len(front), trees, lengths)
    # Not minus infinity: some kernels make a row of nothing else into no number.
    additive = torch.zeros(mask.shape).masked_fill(~mask, torch.finfo(torch.float32).min)
    return Inputs(
        torch.tensor([ids]),
        torch.cat(positions)[None],
        additive[None, None],
        torch.tensor(places),
        torch.tensor(wanted),
        torch.tensor(answers),
    )
