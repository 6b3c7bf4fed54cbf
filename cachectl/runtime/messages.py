"""Messages as the scheduler's requests, and grants as the plans that the generator executes."""

from collections.abc import Iterable, Mapping
from itertools import takewhile

import msgspec

from cachectl.branches import keyed
from cachectl.nodes.node import PathDocument
from cachectl.runtime.composing import ReuseRule, TreeRule
from cachectl.runtime.tombstones import Tombstones
from cachectl.scheduling.document_order import CachedNode, order_by_name
from cachectl.scheduling.request import Request
from cachectl.tree.grant import Grant
from cachectl.tree.knowledge_tree import KnowledgeTree
from protocol.errors import UnknownNode
from protocol.kv import LostCopy, without_adapter
from protocol.plans import AdmissionRequest, DocumentOrder, PrefillPlan
from protocol.prompts import Prompt, Segment, SegmentKind
from protocol.tiers import Tier


class Namespaces:
    """Adds the ``fingerprint`` of the KV to every namespace inside the tree, and takes it off again.

    The fingerprint becomes part of every node's key, so KV of another model or layout is never found. ``seen`` are the
    namespaces that had a plan or were restored, without the fingerprint: an engine's own cache may hold KV of them.
    """

    def __init__(self, fingerprint: str = "") -> None:
        self.prefix = f"{fingerprint}/" if fingerprint else ""
        self.seen: set[str] = set()

    def inside(self, namespace: str) -> str:
        """The tree's name of a namespace."""
        return self.prefix + namespace

    def outside(self, namespace: str) -> str:
        """The messages' name of a namespace of the tree."""
        return namespace.removeprefix(self.prefix)


_SPARE_NODES = 16
"""Nodes that a plan names as the ones that its instance's GPU should give up first."""


def request_of(query_id: str, namespace: str, prompt: Prompt, unshared: bool = False) -> Request:
    """The request for a prompt: the segments before the question are its path in the tree's namespace.

    An ``unshared`` prompt has no path at all.
    """
    prefix = () if unshared else prompt.prefix
    system = sum(1 for _ in takewhile(_is_system, prefix))
    documents = tuple(PathDocument(segment.key, len(segment.token_ids)) for segment in prefix)
    question_tokens = prompt.token_count - sum(document.tokens for document in documents)
    return Request(query_id, namespace, documents, question_tokens, system)


def spare_keys(tree: KnowledgeTree, instance: str) -> tuple[str, ...]:
    """The keys of the nodes that an instance's GPU should give up first, in that order."""
    return tuple(copy.node.key.hex() for copy in tree.tiers.gpu(instance).spare(_SPARE_NODES))


def lost_copies(lost: Iterable[LostCopy]) -> list[tuple[bytes, Tier]]:
    """Copies lost at the reporting instance's own location, as keys and tiers.

    Raises UnknownNode for a string that is no key.
    """
    return [(_key(copy.node), copy.tier) for copy in lost if not copy.location]


def lost_at_peers(lost: Iterable[LostCopy]) -> dict[str, list[tuple[bytes, Tier]]]:
    """Copies lost at other locations, by location, as keys and tiers.

    Raises UnknownNode for a string that is no key.
    """
    copies: dict[str, list[tuple[bytes, Tier]]] = {}
    for copy in lost:
        if copy.location:
            copies.setdefault(copy.location, []).append((_key(copy.node), copy.tier))
    return copies


class Messages:
    """Reads admission messages against the ``tree`` and the ``tombstones`` as they are now, and writes plans.

    ``score_gap`` is that of cached-first order. ``reuse`` decides whether and how a prompt is composed, and ``trees``
    whether its facts stand in trees. ``boots`` has the current life of each instance's engine.
    """

    def __init__(
        self,
        tree: KnowledgeTree,
        namespaces: Namespaces,
        tombstones: Tombstones,
        boots: Mapping[str, str],
        score_gap: float | None,
        reuse: ReuseRule,
        trees: TreeRule,
    ) -> None:
        self._tree = tree
        self._namespaces = namespaces
        self._tombstones = tombstones
        self._boots = boots
        self._reuse = reuse
        self._trees = trees
        self._orders = {order: order_by_name(order, score_gap) for order in DocumentOrder}

    def ordered(self, admission: AdmissionRequest) -> AdmissionRequest:
        """The message with its documents in the order that it asks for, and its facts in trees if they may be."""
        admission = self._trees.applied(admission)
        if admission.order is DocumentOrder.RETRIEVAL:
            return admission
        node: CachedNode | None = self._tree.registry.roots.get(self._namespaces.inside(admission.namespace))
        prompt = admission.prompt
        documents = prompt.documents
        for segment in takewhile(_is_system, prompt.prefix):
            node = node.child(segment.key) if node is not None else None
        order = iter(self._orders[admission.order]([document.key for document in documents], node, admission.scores))
        segments = tuple(
            documents[next(order)] if segment.kind is SegmentKind.DOCUMENT else segment for segment in prompt.segments
        )
        return msgspec.structs.replace(admission, prompt=msgspec.structs.replace(prompt, segments=segments))

    def request(self, admission: AdmissionRequest, unshared: bool = False) -> Request:
        """The scheduler's request. An ``unshared`` one has no path, so nothing of it is found or kept."""
        self._namespaces.seen.add(admission.namespace)
        namespace = self._namespaces.inside(admission.namespace)
        request = request_of(admission.query_id, namespace, admission.prompt, unshared)
        request = request._replace(avoid=admission.avoid)
        if unshared:
            return request
        trees = admission.prompt.trees
        branches = keyed(admission.namespace, trees, admission.prompt.token_ids) if trees is not None else ()
        return request._replace(recompute_share=self._reuse.share(admission), branches=branches)

    def outdated(self, admission: AdmissionRequest) -> bool:
        """Whether one of its documents was deleted after it was found; then nothing of it may be kept.

        The documents that its facts in trees are told from count, too.
        """
        contents = [*(document.key for document in admission.prompt.documents), *admission.prompt.stated_by]
        tenant = without_adapter(admission.namespace)
        return self._tombstones.any(contents, self._namespaces.inside(tenant), admission.found_at)

    def plan(
        self,
        request: AdmissionRequest,
        grant: Grant,
        *,
        queued_ms: float = 0.0,
        speculative: bool = False,
        unshared: bool = False,
    ) -> PrefillPlan:
        """The plan of a grant, for the prompt of ``request``."""
        share, trees = grant.recompute_share, request.prompt.trees
        if trees is not None:
            # Branches of an unshared plan are neither kept nor found.
            trees = msgspec.structs.replace(trees, dropped=grant.dropped_branches, reuse=not unshared)
        plan = PrefillPlan(
            query_id=grant.query_id,
            instance=grant.instance,
            namespace=request.namespace,
            # The engine needs either form of the facts, not both.
            prompt=msgspec.structs.replace(request.prompt, facts=None),
            queued_ms=queued_ms,
            nodes=tuple(grant.documents),
            moves=tuple(grant.moves),
            ends=tuple(grant.ends),
            speculative=speculative,
            spare=spare_keys(self._tree, grant.instance),
            boot=self._boots.get(grant.instance, ""),
            unshared=unshared,
            overtaken=grant.overtaken,
            recompute=self._reuse.recompute(share) if share is not None else None,
            fallback=grant.fallback or self._reuse.fallback(request),
            trees=trees,
            tree_fallback=self._trees.fallback(request),
        )
        if not grant.first:
            return plan
        # The prefill before a composed prompt makes the room for both.
        first = PrefillPlan(
            query_id=f"{plan.query_id}~first",
            instance=plan.instance,
            namespace=plan.namespace,
            prompt=plan.prompt.of_prefix(grant.first),
            nodes=tuple(grant.first.values()),
            moves=plan.moves,
            speculative=plan.speculative,
            spare=plan.spare,
            boot=plan.boot,
        )
        return msgspec.structs.replace(plan, moves=(), first=first)


def _is_system(segment: Segment) -> bool:
    return segment.kind is SegmentKind.SYSTEM


def _key(node: str) -> bytes:
    try:
        return bytes.fromhex(node)
    except ValueError:
        raise UnknownNode(f"{node!r} is not the key of a node") from None
