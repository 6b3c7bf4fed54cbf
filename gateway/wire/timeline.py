"""The times of one query's phases."""

from collections.abc import Callable
from typing import Literal

import msgspec

from gateway.wire.rewriting import Rewriting
from protocol.generation import PrefillResult
from protocol.retrieval import Reranking

EntryName = Literal[
    "rewrite", "retrieval_stage", "rerank", "speculation", "queue", "kv_load", "prefill", "first_token", "decode", "end"
]  # fmt: skip


class TimelineEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """A phase of ``duration_ms``, or a moment without duration, ``at_ms`` after the query's arrival.

    The ``detail`` of a ``rewrite`` says how many tokens the model took, or why the follow-up was not rewritten.
    The ``detail`` of a ``rerank`` says how many chunks were reranked, or why they were not. A ``speculation`` ends with
    its outcome, given as ``detail``: ``confirmed``, ``wrong`` or ``gave_way``. ``kv_load`` is the first part of
    ``prefill``. Both lie within the speculation if one was confirmed. ``first_token`` is the moment at which the first
    token could be sent.
    """

    name: EntryName
    at_ms: float
    duration_ms: float | None = None
    detail: str | None = None


class Timeline:
    """The phases and moments of a query by the gateway's clock. ``now_ms`` returns the time since its arrival.

    ``search_began_ms`` is when its search began.

    Engines measure loading and prefilling themselves. These phases end with the step that reports them, and never begin
    before the engine was called.
    """

    def __init__(self, now_ms: Callable[[], float]) -> None:
        self.now_ms = now_ms
        self._entries: list[TimelineEntry] = []
        self.search_began_ms = self._stage_began_ms = 0.0

    @property
    def entries(self) -> tuple[TimelineEntry, ...]:
        """All entries so far, ordered by their start."""
        return tuple(sorted(self._entries, key=lambda entry: entry.at_ms))

    def moment(self, name: EntryName) -> float:
        """Record a moment now. Returns its time."""
        at_ms = self.now_ms()
        self._entries.append(TimelineEntry(name, at_ms))
        return at_ms

    def phase(self, name: EntryName, began_ms: float, detail: str | None = None) -> None:
        """Record a phase that ends now."""
        self._add(name, began_ms, self.now_ms(), detail)

    def rewritten(self, rewriting: Rewriting, began_ms: float) -> None:
        """Record the rewriting of a follow-up, which ends now. The search begins."""
        detail = f"failed: {rewriting.reason}" if rewriting.reason else f"{rewriting.tokens} tokens"
        self.phase("rewrite", began_ms, detail)
        self.search_began_ms = self._stage_began_ms = self.now_ms()

    def stage(self, number: int, of: int) -> None:
        """Record a stage of the search that ends now. It began at the end of the previous stage."""
        self.phase("retrieval_stage", self._stage_began_ms, f"stage {number} of {of}")
        self._stage_began_ms = self.now_ms()

    def reranked(self, reranking: Reranking) -> None:
        """Record the search's last stage, which ends now. It began at the end of the previous stage."""
        detail = f"failed: {reranking.reason}" if reranking.reason else f"{reranking.candidates} chunks"
        self.phase("rerank", self._stage_began_ms, detail)

    def queued(self, asked_ms: float, overtakes: int) -> None:
        """Record a wait in the queue that ends now."""
        self.phase("queue", asked_ms, f"overtakes: {overtakes}" if overtakes else None)

    def prefilled(self, prefill: PrefillResult, asked_ms: float, ended_ms: float) -> None:
        """Record the loading and prefilling that the engine reported with its first step."""
        began_ms = max(asked_ms, ended_ms - prefill.prefill_ms)
        if prefill.kv_load_ms:
            tiers = ", ".join(f"{tokens} from {tier.value}" for tier, tokens in prefill.loaded.items() if tokens)
            self._add("kv_load", began_ms, min(ended_ms, began_ms + prefill.kv_load_ms), tiers or None)
        detail = f"{prefill.cached_tokens} of {prefill.prompt_tokens} tokens cached"
        if prefill.composed_tokens or prefill.recomputed_tokens:
            detail += f", {prefill.composed_tokens} composed, {prefill.recomputed_tokens} computed again"
        self._add("prefill", began_ms, ended_ms, detail)

    def _add(self, name: EntryName, began_ms: float, ended_ms: float, detail: str | None) -> None:
        self._entries.append(TimelineEntry(name, began_ms, ended_ms - began_ms, detail))
