"""Documents' KV as it was computed elsewhere, and how it moves to its places in a prompt."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

import torch

from generator.composing.codec import Tokens
from generator.composing.runs import Run, positions_of

_MOVED_AT_ONCE_BYTES = 256 << 20
"""Of pages, on a GPU. A document alone is moved in less time than it takes to launch the kernels for it."""


class Donated(NamedTuple):
    """KV of a document as it was computed: its first token was at ``position`` of its prompt.

    In the prompt that is composed, it goes to its ``place``. ``pages`` [pages, page_bytes], in host memory, are those
    that hold any of the tokens; a page begins at a multiple of its tokens.
    """

    position: int
    place: Run
    pages: torch.Tensor


class Moves(NamedTuple):
    """Which ``tokens`` of documents' joined pages move, and ``by`` how many positions."""

    tokens: Tokens
    by: int | torch.Tensor


def moved_together(documents: Iterable[Donated], device: torch.device) -> Iterator[list[Donated]]:
    """The documents in groups that are moved at once.

    On a CPU, these are single documents: joining their pages would be a copy more.
    """
    room = 0 if device.type == "cpu" else _MOVED_AT_ONCE_BYTES
    group: list[Donated] = []
    taken = 0
    for document in documents:
        if group and taken + document.pages.nbytes > room:
            yield group
            group, taken = [], 0
        group.append(document)
        taken += document.pages.nbytes
    if group:
        yield group


def joined_pages(group: Sequence[Donated], device: torch.device) -> torch.Tensor:
    """The pages of documents on a device, shape [pages, page_bytes]."""
    parts = [document.pages.to(device) for document in group]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def moves_of(group: Sequence[Donated], page_tokens: int, device: torch.device) -> Moves:
    """How documents move out of their joined pages, each of which has ``page_tokens`` tokens."""
    first_pages = accumulate((len(document.pages) for document in group), initial=0)
    tokens = []
    for page, document in zip(first_pages, group, strict=False):
        first = page * page_tokens + document.position % page_tokens
        tokens.append(Run(first, first + document.place.tokens))
    by = [document.place.start - document.position for document in group]
    if len(group) == 1:
        # Consecutive tokens are taken without a copy, and a document that stays in place is not turned.
        return Moves(slice(*tokens[0]), by[0])
    counts = torch.tensor([document.place.tokens for document in group])
    return Moves(positions_of(tokens, device), torch.tensor(by).repeat_interleave(counts).to(device))
