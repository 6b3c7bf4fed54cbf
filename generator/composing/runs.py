"""Runs of tokens: which parts of a prompt are computed."""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import torch

WINDOW = 8
"""Tokens of a window that is selected whole (CacheClip, section 4.2)."""


class Run(NamedTuple):
    """Consecutive tokens of a prompt, from ``start`` up to ``end``, by position."""

    start: int
    end: int

    @property
    def tokens(self) -> int:
        """The number of tokens."""
        return self.end - self.start


def positions_of(runs: Iterable[Run], device: torch.device) -> torch.Tensor:
    """The positions of the runs' tokens, in their order."""
    return torch.cat([torch.arange(run.start, run.end) for run in runs]).to(device)


def joined(runs: Iterable[Run]) -> list[Run]:
    """The same tokens in as few runs as possible, in ascending order. The runs may touch and overlap."""
    found: list[Run] = []
    for run in sorted(runs):
        if found and run.start <= found[-1].end:
            found[-1] = Run(found[-1].start, max(found[-1].end, run.end))
        elif run.tokens:
            found.append(run)
    return found


def slices(runs: Iterable[Run], tokens: int) -> Iterator[list[Run]]:
    """Ascending runs in slices of at most ``tokens`` tokens. Runs are cut where a slice ends."""
    taken: list[Run] = []
    room = tokens
    for run in runs:
        start = run.start
        while start < run.end:
            end = min(run.end, start + room)
            taken.append(Run(start, end))
            room -= end - start
            start = end
            if not room:
                yield taken
                taken, room = [], tokens
    if taken:
        yield taken


def windows(documents: Sequence[Run], tokens: int) -> list[Run]:
    """Windows of ``tokens`` tokens from each document's start; its last one may be shorter."""
    return [
        Run(start, min(start + tokens, document.end))
        for document in documents
        for start in range(document.start, document.end, tokens)
    ]


def best(candidates: Sequence[Run], scores: torch.Tensor, budget: int) -> list[Run]:
    """The candidates with the highest mean score of their tokens that ``budget`` tokens suffice for, ascending.

    ``scores`` has one for each position of the prompt.
    """
    sums = torch.cat([torch.zeros(1, device=scores.device), scores.float().cumsum(0)]).tolist()
    ranked = sorted(candidates, key=lambda run: (sums[run.start] - sums[run.end]) / run.tokens)
    chosen = []
    for run in ranked:
        if run.tokens <= budget:
            chosen.append(run)
            budget -= run.tokens
    return joined(chosen)
