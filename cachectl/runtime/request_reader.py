"""Admission messages as the scheduler's requests."""

import msgspec

from cachectl.branches.keyed_branch import keyed
from cachectl.runtime.composing.reuse_rule import ReuseRule
from cachectl.runtime.composing.tree_rule import TreeRule
from cachectl.runtime.namespaces import Namespaces
from cachectl.runtime.tombstones import Tombstones
from cachectl.scheduling.document_order import order_by_name
from cachectl.scheduling.plan_translation import reordered, request_of
from cachectl.scheduling.request import Request
from cachectl.tree.knowledge_tree import KnowledgeTree
from protocol.plans import AdmissionRequest, DocumentOrder


class RequestReader:
    """Reads admission messages against the ``tree`` and the ``tombstones`` as they are now.

    ``score_gap`` is that of cached-first order. ``reuse`` decides whether a prompt is composed, and ``trees`` whether
    its facts stand in trees.
    """

    def __init__(
        self,
        tree: KnowledgeTree,
        namespaces: Namespaces,
        tombstones: Tombstones,
        score_gap: float | None,
        reuse: ReuseRule,
        trees: TreeRule,
    ) -> None:
        self._tree = tree
        self._namespaces = namespaces
        self._tombstones = tombstones
        self._reuse = reuse
        self._trees = trees
        self._orders = {order: order_by_name(order, score_gap) for order in DocumentOrder}

    def ordered(self, admission: AdmissionRequest) -> AdmissionRequest:
        """The message with its documents in the order that it asks for, and its facts in trees if they may be."""
        admission = self._trees.applied(admission)
        if admission.order is DocumentOrder.RETRIEVAL:
            return admission
        root = self._tree.registry.roots.get(self._namespaces.inside(admission.namespace))
        prompt = reordered(admission.prompt, self._orders[admission.order], root, admission.scores)
        return msgspec.structs.replace(admission, prompt=prompt)

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
        return self._tombstones.any(contents, self._namespaces.inside(admission.namespace), admission.found_at)
