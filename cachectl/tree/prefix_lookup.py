"""Lookup of cached prefixes: what a request finds, and how much of it is worth loading."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import NamedTuple

from cachectl.nodes.node import Copy, Node, PathDocument
from cachectl.tiers.tier_cache import TierCache
from cachectl.tiers.tier_manager import TierManager
from cachectl.tree.load_or_recompute import Composing, Loading, LoadOrRecompute, TreeCosts
from cachectl.tree.node_registry import NodeRegistry
from protocol.plans import Fallback

_DONORS = 16
"""How many of a document's nodes are looked at for the best donor: a popular document has thousands."""


class CachedPrefix(NamedTuple):
    """What a request finds for an instance: a copy of each leading document, and what to load of them.

    The prefill computes ``computed`` tokens. It takes ``seconds``, of which loading and moving KV takes ``moving_s``.
    It may also compose documents after the loaded ones (``composing``), or say why it does not (``fallback``).
    """

    copies: list[Copy]
    loading: Loading
    computed: int
    seconds: float
    moving_s: float
    composing: Composing | None = None
    fallback: Fallback | None = None

    @property
    def donor_keys(self) -> list[bytes]:
        """The keys of the nodes that donate KV."""
        donors = self.composing.donors if self.composing is not None else ()
        return [donor.node.key for donor in donors if donor is not None]


class PrefixLookup:
    """Finds cached prefixes, and knows what prefills cost."""

    def __init__(self, registry: NodeRegistry, tiers: TierManager, costs: TreeCosts) -> None:
        self._registry = registry
        self._roots = registry.roots
        self._tiers = tiers
        self._cost = costs.prefill
        self._choice = LoadOrRecompute(costs, tiers.loads, tiers.links)

    def match(self, namespace: str, contents: Iterable[str], instance: str) -> list[Copy]:
        """The longest prefix within an instance's own reach: each document's fastest copy. O(depth), reads only."""
        gpu = self._tiers.gpu(instance)
        found: list[Copy] = []
        node = self._roots.get(namespace)
        if node is None:
            return found
        for content in contents:
            node = node.child_of(content)
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

    def places_of(self, namespace: str, documents: Sequence[PathDocument], front: int) -> set[str]:
        """The locations, disks and instances that have a copy of the first document after the first ``front`` ones."""
        node = self._roots.get(namespace)
        for document in documents[: front + 1]:
            node = node.child_of(document.content) if node is not None else None
        if node is None:
            return set()
        return {copy.cache.owner for copy in node.copies}

    def loadable(self, namespace: str, documents: Sequence[PathDocument], instance: str) -> list[Copy]:
        """The longest prefix that an instance can load: what ``hits`` finds, and after it what lies at its peers.

        After a peer's copy, only a disk that both locations have may hold anything within reach. Peers are read from
        for no longer than the instance waits for them.
        """
        found = self.hits(namespace, documents, instance)
        links = self._tiers.links
        if not links.exist:
            return found
        gpu = self._tiers.gpu(instance)
        node = found[-1].node if found else self._roots.get(namespace)
        left_s = links.longest_s(instance)
        for document in documents[len(found) :]:
            node = node.child_of(document.content) if node is not None else None
            if node is None or node.tokens != document.tokens:
                break
            copy = self._tiers.fastest(node, gpu)
            if copy is None:
                copy = self._tiers.at_peers(node, gpu)
                if copy is None:
                    break
                left_s -= self._choice.load_seconds(copy, gpu)
                if left_s < 0:
                    break
            found.append(copy)
        return found

    def _in_time(self, donors: list[Copy | None], loaded: Sequence[Copy], gpu: TierCache) -> list[Copy | None]:
        """The donors without those at peers that could not be read in time, after the copies that are ``loaded``."""
        left_s = self._tiers.links.longest_s(gpu.owner)
        left_s -= sum([self._choice.load_seconds(copy, gpu) for copy in loaded if not gpu.reaches(copy.cache)])
        kept: list[Copy | None] = []
        for donor in donors:
            copy = donor
            if copy is not None and not gpu.reaches(copy.cache):
                seconds = self._choice.load_seconds(copy, gpu)
                if seconds > left_s:
                    copy = None
                else:
                    left_s -= seconds
            kept.append(copy)
        return kept

    def donors(self, namespace: str, documents: Sequence[PathDocument], instance: str, front: int) -> list[Copy | None]:
        """The fastest copy of each document after the first ``front`` ones, from anywhere below these.

        Copies within the instance's own reach come first. One that has stood after another document makes better
        answers than one that has not. Only the latest nodes of a document are looked at.
        """
        gpu = self._tiers.gpu(instance)
        above = self._roots.get(namespace)
        for document in documents[:front]:
            above = above.child_of(document.content) if above is not None else None
        if above is None:
            return [None] * (len(documents) - front)
        return [self._donor(above, document, gpu) for document in documents[front:]]

    def _donor(self, above: Node, document: PathDocument, gpu: TierCache) -> Copy | None:
        nodes = islice(reversed(self._registry.nodes_of(document.content)), _DONORS)
        copies = [
            copy
            for node in nodes
            if node.tokens == document.tokens and node.is_below(above)
            if (copy := self._tiers.fastest(node, gpu) or self._tiers.at_peers(node, gpu)) is not None
        ]
        return min(
            copies,
            key=lambda copy: (not gpu.reaches(copy.cache), copy.cache.rank, copy.node.parent is above),
            default=None,
        )

    def cached_prefix(
        self,
        namespace: str,
        documents: Sequence[PathDocument],
        instance: str,
        question_tokens: int,
        front: int = 0,
        share: float | None = None,
    ) -> CachedPrefix:
        """What a prompt finds for an instance, and how much of it to load.

        With a ``share``, documents after the first ``front`` ones may be composed, and that share is computed again.
        """
        gpu = self._tiers.gpu(instance)
        copies = self.loadable(namespace, documents, instance)
        tokens = question_tokens + sum([document.tokens for document in documents])
        loading = self._choice.loading(copies, tokens, gpu)
        computed, moving_s = tokens - loading.tokens, loading.seconds
        composing, fallback = None, None
        if share is not None and front <= loading.documents < len(documents):
            donors = self.donors(namespace, documents, instance, front)[loading.documents - front :]
            if self._tiers.links.exist:
                donors = self._in_time(donors, copies[: loading.documents], gpu)
            behind = documents[loading.documents :]
            composing = self._choice.composing(donors, behind, loading, question_tokens, share, gpu)
            if composing is None:
                fallback = Fallback.SLOWER if any(donors) else Fallback.NO_DONOR
        if composing is not None:
            computed -= composing.reused
            moving_s += composing.seconds
        seconds = moving_s + self._cost(tokens - computed, computed)
        return CachedPrefix(copies, loading, computed, seconds, moving_s, composing, fallback)

    def seconds_behind(self, prefix: CachedPrefix, tokens: int) -> float:
        """The seconds of a prefill once another has computed the first ``tokens`` that it lacks."""
        composed = prefix.composing.reused if prefix.composing is not None else 0
        lacking = prefix.computed + composed
        # The last token is always computed: the answer's first token comes from it.
        computed = max(1, lacking - tokens)
        return prefix.loading.seconds + self._cost(prefix.loading.tokens + lacking - computed, computed)

    def prefill_seconds(self, cached_tokens: int, new_tokens: int) -> float:
        """The seconds of a prefill, by the cost model."""
        return self._cost(cached_tokens, new_tokens)
