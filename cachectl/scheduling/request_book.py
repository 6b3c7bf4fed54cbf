"""The request book: every request that waits or runs."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from cachectl.branches.kept_branches import KeptBranches
from cachectl.scheduling.queue import Work
from cachectl.scheduling.request import Request, RequestKind, ScheduledRequest
from cachectl.tree.knowledge_tree import KnowledgeTree
from cachectl.tree.prefix_lookup import CachedPrefix
from protocol.errors import InvalidRequest, UnknownPlan


class RequestBook:
    """Requests by query, in order of arrival, and what each of them finds now: in the tree, and of its ``branches``."""

    def __init__(self, tree: KnowledgeTree, branches: KeptBranches) -> None:
        self._tree = tree
        self._branches = branches
        self.requests: dict[str, ScheduledRequest] = {}

    def new(self, request: Request, kind: RequestKind) -> ScheduledRequest:
        """A well-formed new request of a kind; ``requests`` does not have it yet.

        Raises InvalidRequest for a known query, for impossible lengths, and for a document that the tree has with
        another length.
        """
        if request.query_id in self.requests:
            raise InvalidRequest(f"query {request.query_id} was admitted before")
        if request.question_tokens < 0 or any(document.tokens <= 0 for document in request.documents):
            raise InvalidRequest("a document has at least one token, and a question no negative number of them")
        scheduled = ScheduledRequest(request, kind)
        for document, key in zip(request.documents, scheduled.keys, strict=True):
            node = self._tree.registry.nodes.get(key)
            if node is not None and node.tokens != document.tokens:
                raise InvalidRequest(
                    f"document {document.content} has {node.tokens} tokens in the tree, not {document.tokens}"
                )
        return scheduled

    def running(self, query_id: str) -> ScheduledRequest:
        """A request that holds a grant. Raises UnknownPlan."""
        scheduled = self.requests.get(query_id)
        if scheduled is None or scheduled.grant is None:
            raise UnknownPlan(f"query {query_id!r} does not run")
        return scheduled

    def waits(self, query_id: str) -> bool:
        """Whether a request waits for its turn."""
        scheduled = self.requests.get(query_id)
        return scheduled is not None and scheduled.grant is None

    def naming(self, contents: Collection[str], namespace: str | None) -> set[str]:
        """Queries, running or waiting, with any of these documents, or facts in trees that they state.

        They are those of one namespace or, if it is None, of all.
        """
        return {
            query_id
            for query_id, scheduled in self.requests.items()
            if (namespace is None or scheduled.request.namespace == namespace)
            and any(content in contents for content in (*scheduled.contents, *scheduled.request.stated_by))
        }

    def cached_prefix(self, scheduled: ScheduledRequest, instance: str) -> CachedPrefix:
        """What a request finds on an instance now, and how much of it to load."""
        request = scheduled.request
        return self._tree.lookup.cached_prefix(
            request.namespace,
            request.documents,
            instance,
            self.question_tokens(request, instance),
            request.pinned,
            request.recompute_share,
        )

    def question_tokens(self, request: Request, instance: str) -> int:
        """How many tokens behind its documents an instance has to compute for a request: all but kept branches."""
        if not request.branches:
            return request.question_tokens
        return request.question_tokens - self._branches.found(instance, request.branches)

    def reconsider(self, keys: Sequence[bytes]) -> None:
        """Update nodes and branches that are needed less than before: a request that waited for them has left."""
        self._tree.reconsider(keys)
        self._branches.reconsider(keys)

    def found(self, query_id: str) -> CachedPrefix:
        """What a waiting request finds on its instance now."""
        scheduled = self.requests[query_id]
        return self.cached_prefix(scheduled, scheduled.instance)

    def work(self, query_id: str) -> Work:
        """What a waiting request's prefill finds cached now, and what remains to be done."""
        scheduled, prefix = self.requests[query_id], self.found(query_id)
        return Work(scheduled.tokens - prefix.computed, prefix.computed, prefix.seconds)
