"""Documents' KV as it was computed elsewhere, and how it moves to its places in a prompt."""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import torch

from generator.composing.codec import Tokens
from generator.composing.runs import Run, positions_of
from generator.connector.blocks.staged_pages import StagedRows

_MOVED_AT_ONCE_BYTES = 256 << 20
"""Of pages that come out of host memory to a GPU."""

_MOVED_THERE_AT_ONCE_BYTES = 1 << 30
"""Of pages that are on the GPU. A document alone is moved in less time than it takes to launch the kernels for it."""


class Donated(NamedTuple):
    """KV of a document as it was computed: its first token was at ``position`` of its prompt.

    In the prompt that is composed, it goes to its ``place``. The ``rows`` are the pages that hold any of the tokens; a
    page begins at a multiple of its tokens. Those of a prompt's documents are side by side, in the same order.
    """

    position: int
    place: Run
    rows: StagedRows

    @property
    def nbytes(self) -> int:
        """The size of its pages."""
        return len(self.rows.numbers) * self.rows.staged.pages.shape[1]


class Moves(NamedTuple):
    """Which ``tokens`` of documents' joined pages move, and ``by`` how many positions."""

    tokens: Tokens
    by: int | torch.Tensor


def moved_together(documents: Iterable[Donated], device: torch.device) -> Iterator[list[Donated]]:
    """The documents in groups that are moved at once to a device.

    On a CPU, these are single documents: without a group, their tokens are read where they are.
    """
    group: list[Donated] = []
    taken = 0
    for document in documents:
        if group and taken + document.nbytes > _room(document, device):
            yield group
            group, taken = [], 0
        group.append(document)
        taken += document.nbytes
    if group:
        yield group


def joined_pages(group: Sequence[Donated], device: torch.device) -> torch.Tensor:
    """The pages of documents on a device, shape [pages, page_bytes]."""
    first, last = group[0].rows, group[-1].rows
    return first.staged.pages[first.numbers.start : last.numbers.stop].to(device)


def moves_of(group: Sequence[Donated], page_tokens: int, device: torch.device) -> Moves:
    """How documents move out of their joined pages, each of which has ``page_tokens`` tokens."""
    tokens = []
    for document in group:
        page = document.rows.numbers.start - group[0].rows.numbers.start
        first = page * page_tokens + document.position % page_tokens
        tokens.append(Run(first, first + document.place.tokens))
    by = [document.place.start - document.position for document in group]
    if len(group) == 1:
        # Consecutive tokens are taken without a copy, and a document that stays in place is not turned.
        return Moves(slice(*tokens[0]), by[0])
    counts = torch.tensor([document.place.tokens for document in group])
    return Moves(positions_of(tokens, device), torch.tensor(by).repeat_interleave(counts).to(device))


def _room(document: Donated, device: torch.device) -> int:
    if device.type == "cpu":
        return 0
    return _MOVED_THERE_AT_ONCE_BYTES if document.rows.staged.pages.device == device else _MOVED_AT_ONCE_BYTES
