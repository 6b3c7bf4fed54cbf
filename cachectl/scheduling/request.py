"""Requests for prefills, as callers make them and as the scheduler tracks them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from enum import Enum
from typing import NamedTuple

from cachectl.branches import KeptBranches, KeyedBranch
from cachectl.nodes.keys import path_keys
from cachectl.nodes.node import PathDocument
from cachectl.scheduling.queue import Work
from cachectl.tree.grant import Grant
from cachectl.tree.knowledge_tree import KnowledgeTree
from cachectl.tree.prefix_lookup import CachedPrefix
from protocol.errors import InvalidRequest, UnknownPlan
from protocol.kv import without_adapter


class Request(NamedTuple):
    """A request for a prefill: documents in prompt order, and ``question_tokens`` after them, facts included.

    The first ``pinned`` documents are pinned: the system prompt. The request is not given to the instances in
    ``avoid``. If documents may be composed, ``recompute_share`` of them is computed again. ``branches`` are those of
    the dependency trees among the tokens after the documents.
    """

    query_id: str
    namespace: str
    documents: tuple[PathDocument, ...]
    question_tokens: int
    pinned: int = 0
    avoid: tuple[str, ...] = ()
    recompute_share: float | None = None
    branches: tuple[KeyedBranch, ...] = ()

    @property
    def stated_by(self) -> set[str]:
        """The content hashes of the chunks that state its branches."""
        return {content for branch in self.branches for content in branch.stated_by}


class RequestKind(Enum):
    """What a request is for.

    - QUERY: an answer that a caller waits for.
    - SPECULATION: an answer on provisional documents. It makes way for queries.
    - PREFETCH: what a waiting query needs, loaded and computed. It makes way, too. It has no answer, so it takes no
      slot.
    - LOAD: what a waiting query needs, only loaded. It takes no part of the steps either.
    """

    QUERY = "query"
    SPECULATION = "speculation"
    PREFETCH = "prefetch"
    LOAD = "load"


_AHEAD = (RequestKind.PREFETCH, RequestKind.LOAD)


class ScheduledRequest:
    """A request of a ``kind`` that waits or runs: its prompt has ``tokens``, and its prefill may take ``seconds``.

    ``step_share`` is what the prefill takes of each step of the engine, in tokens, while it runs. ``prefix`` is what
    the request finds cached, from its lookup until its start. A waiting query names what is computed or loaded for it
    in ``prefetched_by``.
    """

    def __init__(self, request: Request, kind: RequestKind) -> None:
        self.request = request
        self.kind = kind
        self.contents = [document.content for document in request.documents]
        self.keys = path_keys(request.namespace, self.contents)
        self.tokens = request.question_tokens + sum([document.tokens for document in request.documents])
        self.instance = ""
        self.seconds = 0.0
        self.began = 0.0
        self.step_share = 0
        self.prefetched_by = ""
        self.prefix: CachedPrefix | None = None
        self.grant: Grant | None = None

    def shares(self, other: ScheduledRequest) -> int:
        """How many leading documents its path has in common with another's."""
        shared = 0
        for mine, theirs in zip(self.keys, other.keys, strict=False):
            if mine != theirs:
                break
            shared += 1
        return shared

    @property
    def makes_way(self) -> bool:
        """Whether queries take its room: it may turn out not to be wanted, or somebody else waits for it."""
        return self.kind is not RequestKind.QUERY

    @property
    def is_ahead(self) -> bool:
        """Whether a waiting query's documents are prepared, and nothing is answered."""
        return self.kind in _AHEAD


class RequestBook:
    """Requests by query, in order of arrival, and what each finds now: in the tree, and of its ``branches``."""

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

        They are those of a tenant's namespaces or, if it is None, of all.
        """
        return {
            query_id
            for query_id, scheduled in self.requests.items()
            if (namespace is None or without_adapter(scheduled.request.namespace) == namespace)
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
        """How many tokens after its documents an instance has to compute for a request: all but kept branches."""
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
