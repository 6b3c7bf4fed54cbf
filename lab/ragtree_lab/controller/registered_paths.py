"""Paths that a tier reports to hold, as a restarted controller registers them.

Prompts have three documents behind the system prompt, and share no first one.
"""

import time
from collections.abc import Iterable, Iterator

import psutil

from cachectl.nodes.node import PathDocument
from cachectl.tiers.tier_cache import TierCache
from cachectl.tree.knowledge_tree import KnowledgeTree
from protocol.errors import ConfigError, InternalError
from protocol.kv import HeldNode, Pages
from ragtree_lab.controller.machines import PAGE_TOKENS
from ragtree_lab.controller.popular_documents import NAMESPACE, content
from ragtree_lab.controller.processes import Report

_BEHIND = 3
_EVERY = 1000
_NODE_BYTES, _COPY_BYTES, _PAGE_BYTES = 1000, 200, 5
"""What to expect, on the safe side."""


def whole_pages(tokens: int) -> int:
    """A document's length, filled up to whole pages."""
    return -(-tokens // PAGE_TOKENS) * PAGE_TOKENS


def paths_of(nodes: int) -> int:
    """The number of paths that have about so many nodes."""
    return max(1, nodes // _BEHIND)


def nodes_of(paths: int) -> int:
    """The number of nodes of so many paths, with the system prompt."""
    return _BEHIND * paths + 1


def path(number: int, tokens: int) -> tuple[PathDocument, ...]:
    """The documents of a path, from 0 on: the system prompt, and those behind it, which no other path has."""
    first = 1 + _BEHIND * number
    return tuple([PathDocument(content(document), tokens) for document in (0, *range(first, first + _BEHIND))])


def held_nodes(paths: int, tokens: int) -> Iterator[HeldNode]:
    """What a tier reports: the system prompt, and behind it so many paths, with all of their nodes."""
    pages = tokens // PAGE_TOKENS
    for number in range(nodes_of(paths)):
        # A path's first document has the number 1, 4, 7 and so on.
        first = number - (number - 1) % _BEHIND
        documents = (0, *range(first, number + 1)) if number else (0,)
        numbers = tuple(range(number * pages, (number + 1) * pages))
        yield HeldNode(NAMESPACE, tuple(map(content, documents)), tokens, Pages(numbers, number + 1))


def register(tree: KnowledgeTree, cache: TierCache, held: Iterable[HeldNode], report: Report) -> float:
    """Register what a cache is reported to hold; the seconds of processor time that the slowest of it took.

    Raises InternalError if something is not registered.
    """
    slowest, number = 0.0, 0
    for number, node in enumerate(held, start=1):
        begin = time.thread_time()
        if not tree.insert(node, cache):
            raise InternalError("a node was not registered")
        slowest = max(slowest, time.thread_time() - begin)
        if not number % _EVERY:
            report.advance(_EVERY)
    report.advance(number % _EVERY)
    if cache.allocator is not None:
        # The end of a restore.
        cache.allocator.settle()
    return slowest


def needed_bytes(nodes: int, machines: int = 1, pages: int = 0) -> int:
    """About how much memory nodes on so many machines take, each of them with so many pages in host memory."""
    return nodes * (_NODE_BYTES + machines * (_COPY_BYTES + pages * _PAGE_BYTES))


def check_memory(needed: int, what: str, param: str) -> None:
    """Raise ConfigError if less memory is available than ``what`` needs; ``param`` sets its size."""
    available = psutil.virtual_memory().available
    if needed > available:
        raise ConfigError(
            f"{what} takes about {needed / 2**30:.1f} GiB, but only {available / 2**30:.1f} GiB are available", param
        )
