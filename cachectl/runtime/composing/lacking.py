"""What composed prompts lack, to be computed ahead of time."""

from collections.abc import Iterator, Sequence
from typing import TypeVar

from cachectl.tree.grant import GrantedDocument

Part = TypeVar("Part")

MOST_WANTED = 256
"""Documents to remember. The ones that were asked for the longest time ago are forgotten first."""


def lacking(path: Sequence[Part], granted: Sequence[GrantedDocument], system: int) -> Iterator[tuple[Part, ...]]:
    """The paths that compute what a composed prompt neither finds nor is donated.

    Each is the ``system`` prompts, the first document, and one that is lacking. Composing answers better out of KV that
    has seen another document than out of KV that has seen none (docs/composition.md).
    """
    front = tuple(path[: system + 1])
    for part, found in zip(path, granted, strict=True):
        if found.source is None and found.donor is None and part not in front:
            yield (*front, part)


def without_donated(path: Sequence[Part], loaded: int, donors: Sequence[object | None]) -> tuple[Part, ...]:
    """The path without what is donated: its ``loaded`` documents, and of those behind the ones without a donor."""
    behind = zip(path[loaded:], donors, strict=False)
    return (*path[:loaded], *(part for part, donor in behind if donor is None))
