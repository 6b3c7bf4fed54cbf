"""Requests for prefills, as callers make them and as the scheduler tracks them."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from cachectl.branches.keyed_branch import KeyedBranch
from cachectl.nodes.keys import path_keys
from cachectl.nodes.node import PathDocument
from cachectl.tree.grant import Grant
from cachectl.tree.prefix_lookup import CachedPrefix


class Request(NamedTuple):
    """A request for a prefill: documents in prompt order, and ``question_tokens`` behind them, facts included.

    The first ``pinned`` documents are pinned: the system prompt. The request is not given to the instances in
    ``avoid``. If documents may be composed, ``recompute_share`` of them is computed again. ``branches`` are those of
    the dependency trees among the tokens behind the documents.
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

    __slots__ = (
        "contents",
        "grant",
        "instance",
        "keys",
        "kind",
        "prefetched_by",
        "prefix",
        "request",
        "seconds",
        "step_share",
        "tokens",
    )

    def __init__(self, request: Request, kind: RequestKind) -> None:
        self.request = request
        self.kind = kind
        self.contents = [document.content for document in request.documents]
        self.keys = path_keys(request.namespace, self.contents)
        self.tokens = request.question_tokens + sum([document.tokens for document in request.documents])
        self.instance = ""
        self.seconds = 0.0
        self.step_share = 0
        self.prefetched_by = ""
        self.prefix: CachedPrefix | None = None
        self.grant: Grant | None = None

    @property
    def makes_way(self) -> bool:
        """Whether queries take its room: it may turn out not to be wanted, or somebody else waits for it."""
        return self.kind is not RequestKind.QUERY

    @property
    def is_ahead(self) -> bool:
        """Whether a waiting query's documents are prepared, and nothing is answered."""
        return self.kind in _AHEAD
