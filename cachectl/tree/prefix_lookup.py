"""Lookup of cached prefixes: what a request finds, and how much of it is worth loading."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from cachectl.nodes.node import Copy
from cachectl.tree.load_or_recompute import Loading, LoadOrRecompute

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from cachectl.nodes.node import Node, PathDocument
    from cachectl.tiers.tier_manager import TierManager
    from protocol.tiers import Tier


class CachedPrefix(NamedTuple):
    """What a request finds on an instance: a copy of each leading document, and what to load of them."""

    copies: list[Copy]
    loading: Loading


class PrefixLookup:
    """Finds cached prefixes, and knows what prefills cost.

    ``cost(cached, new)`` gives the seconds of a prefill of so many new tokens behind so many cached ones, and
    ``load_seconds(tokens, tier)`` those to load tokens from a tier; None if loading is free.
    """

    def __init__(
        self,
        roots: dict[str, Node],
        tiers: TierManager,
        cost: Callable[[int, int], float],
        load_seconds: Callable[[int, Tier], float] | None,
    ) -> None:
        self._roots = roots
        self._tiers = tiers
        self._cost = cost
        self._load_or_recompute = LoadOrRecompute(cost, load_seconds)

    def match(self, namespace: str, contents: Iterable[str], instance: str) -> list[Copy]:
        """The longest prefix that an instance can use: each document's fastest copy. O(depth), reads only."""
        gpu = self._tiers.gpu(instance)
        found: list[Copy] = []
        node = self._roots.get(namespace)
        if node is None:
            return found
        for content in contents:
            node = node.children.get(content)
            if node is None or (copy := self._tiers.fastest(node, gpu)) is None:
                break
            found.append(copy)
        return found

    def hits(self, namespace: str, documents: Sequence[PathDocument], instance: str) -> list[Copy]:
        """What ``match`` finds, up to the first document whose length differs from the tree's."""
        found = self.match(namespace, [document.content for document in documents], instance)
        for index, copy in enumerate(found):
            if copy.node.tokens != documents[index].tokens:
                return found[:index]
        return found

    def cached_prefix(
        self, namespace: str, documents: Sequence[PathDocument], instance: str, prompt_tokens: int
    ) -> CachedPrefix:
        """What a prompt of ``prompt_tokens`` tokens finds on an instance, and how much of it to load."""
        copies = self.hits(namespace, documents, instance)
        return CachedPrefix(copies, self._load_or_recompute.choose(copies, prompt_tokens))

    def prefill_seconds(self, cached_tokens: int, new_tokens: int) -> float:
        """The seconds of a prefill, by the cost model."""
        return self._cost(cached_tokens, new_tokens)
