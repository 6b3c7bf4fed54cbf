"""The engine's blocks that a request has, in each of its groups."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from generator.connector.step_jobs import Purge
from protocol.kv import KvNode, Paging

NULL_BLOCK = 0
"""What vLLM has in a request's table instead of a block in front of the window."""


class PlacedDocuments(NamedTuple):
    """Where the documents of a request stand. The request itself is not kept: it would cost its token lists."""

    namespace: str
    path: tuple[str, ...]
    nodes: tuple[KvNode, ...]

    @property
    def tokens(self) -> int:
        """How many tokens they have, as far as nodes are kept of them."""
        return self.nodes[-1].prefix_tokens + self.nodes[-1].tokens if self.nodes else 0

    def purged_from(self, purge: Purge) -> int | None:
        """The first token of any of the documents to delete, or None if there is none of them."""
        if not purge.covers(self.namespace, self.path):
            return None
        first = next((node for node in self.nodes if purge.covers(node.namespace, node.path)), None)
        return first.prefix_tokens if first is not None else 0


class RequestBlocks:
    """A request's blocks: for each group those of its pages, from the prompt's first one on.

    vLLM takes the blocks in front of a sliding window back while it computes. Here their numbers stay, so ask for those
    of a node's window while it is in the window only. ``windows`` then keeps them, by the node's key, until the node is
    kept as planned.
    """

    def __init__(self, paging: Paging) -> None:
        self._paging = paging
        self.groups: list[list[int]] = [[] for _ in paging.groups]
        self.windows: dict[str, tuple[int, ...]] = {}

    def __iter__(self) -> Iterator[int]:
        """All blocks that it has, or had before a window passed them, without those of ``windows``."""
        return (block for blocks in self.groups for block in blocks if block != NULL_BLOCK)

    def replace(self, blocks: Sequence[Sequence[int]]) -> None:
        """Take other blocks, by group: the engine has allocated the request anew."""
        self.groups = [list(group) for group in blocks]

    def extend(self, blocks: Sequence[Sequence[int]]) -> None:
        """Add new blocks, by group, after the others."""
        for known, new in zip(self.groups, blocks, strict=True):
            known.extend(new)

    def clear(self) -> None:
        """Forget the blocks, which the engine has taken back. Those of ``windows`` stay."""
        self.groups = [[] for _ in self._paging.groups]

    def after(self, tokens: int) -> Iterator[int]:
        """The blocks that have any token after the first ``tokens``."""
        for number, group in enumerate(self.groups):
            yield from (block for block in group[tokens // self._paging.group_tokens(number) :] if block != NULL_BLOCK)

    def of_node(self, node: KvNode) -> tuple[int, ...] | None:
        """The blocks with the pages of a node, in their order. None if the request has not got all, or lost some."""
        kept = self.windows.get(node.key, ())
        at = 0
        found: list[int] = []
        for number, span in enumerate(self._paging.spans(node.prefix_tokens, node.tokens)):
            if self._paging.groups[number].window:
                found += kept[at : at + len(span)]
                at += len(span)
            else:
                found += self._in_table(number, span)
        whole = len(found) == self._paging.page_count(node.prefix_tokens, node.tokens)
        return tuple(found) if whole and NULL_BLOCK not in found else None

    def window_of(self, node: KvNode) -> dict[int, int]:
        """The blocks of the pages that a node keeps of windows, by the page's number in the node, without states.

        Call it while they are in the window. ``NULL_BLOCK`` stands for a block that the request never had.
        """
        return {page: block for group, page, block in self._windows_of(node) if not self._paging.groups[group].states}

    def states_of(self, node: KvNode) -> dict[int, int]:
        """The blocks with a node's states, by the page's number in the node, once its last token is computed.

        The next token overwrites them: the request goes on in these blocks.
        """
        return {page: block for group, page, block in self._windows_of(node) if self._paging.groups[group].states}

    def _windows_of(self, node: KvNode) -> Iterator[tuple[int, int, int]]:
        """For each page that a node keeps of windows: its group, its number in the node, and its block."""
        first = 0
        for group, span in enumerate(self._paging.spans(node.prefix_tokens, node.tokens)):
            if self._paging.groups[group].window:
                blocks = self._in_table(group, span)
                blocks += [NULL_BLOCK] * (len(span) - len(blocks))
                yield from ((group, page, block) for page, block in enumerate(blocks, start=first))
            first += len(span)

    def _in_table(self, group: int, span: range) -> list[int]:
        return self.groups[group][span.start : span.stop]


def in_order(pages: Mapping[int, int]) -> tuple[int, ...]:
    """The blocks of pages, by the pages' numbers."""
    return tuple(block for _, block in sorted(pages.items()))
