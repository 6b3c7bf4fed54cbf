"""Requests for prefills, as callers make them and as the scheduler tracks them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from cachectl.branches.keyed_branch import KeyedBranch
from cachectl.nodes.keys import path_keys
from cachectl.nodes.node import PathDocument

if TYPE_CHECKING:
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


class ScheduledRequest:
    """A request that waits or runs: its prompt has ``tokens``, and its prefill may take ``seconds``.

    ``step_share`` is what the prefill takes of each step of the engine, in tokens, while it runs. ``prefix`` is what
    the request finds cached, from its lookup until its start. A ``speculative`` request may turn out not to be wanted.
    A prefetch is speculative too. It has no answer, so it takes no slot: it has ``is_prefetch`` set, and the waiting
    request that it serves names it in ``prefetched_by``. One that ``only_loads`` takes no part of the steps either.
    """

    __slots__ = (
        "contents",
        "grant",
        "instance",
        "is_prefetch",
        "keys",
        "only_loads",
        "prefetched_by",
        "prefix",
        "request",
        "seconds",
        "speculative",
        "step_share",
        "tokens",
    )

    def __init__(self, request: Request) -> None:
        self.request = request
        self.contents = [document.content for document in request.documents]
        self.keys = path_keys(request.namespace, self.contents)
        self.tokens = request.question_tokens + sum([document.tokens for document in request.documents])
        self.instance = ""
        self.seconds = 0.0
        self.step_share = 0
        self.speculative = False
        self.is_prefetch = False
        self.only_loads = False
        self.prefetched_by = ""
        self.prefix: CachedPrefix | None = None
        self.grant: Grant | None = None
