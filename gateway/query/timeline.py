"""The times of one query's phases and of its tokens."""

from collections.abc import Callable

from gateway.wire.reply import EntryName, Rewriting, TimelineEntry
from protocol.generation import PrefillResult
from protocol.retrieval import Reranking


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


class TokenTimes:
    """Counts the tokens of an answer, and measures the time to the first one and between them.

    ``first_ms`` is in milliseconds since the query's arrival; None before the first token.
    """

    def __init__(self) -> None:
        self.tokens = 0
        self.first_ms: float | None = None
        self._last_ms = 0.0
        self._longest_gap_ms = 0.0

    def record(self, at_ms: float, tokens: int) -> None:
        """Record a step with at least one token, ``at_ms`` after the query's arrival."""
        if self.first_ms is None:
            self.first_ms = at_ms
        else:
            self._longest_gap_ms = max(self._longest_gap_ms, at_ms - self._last_ms)
        self._last_ms = at_ms
        self.tokens += tokens

    @property
    def first_s(self) -> float | None:
        """Seconds from the query's arrival to its first token; None before it."""
        return None if self.first_ms is None else self.first_ms / 1000

    @property
    def gaps_s(self) -> tuple[float, float] | None:
        """Mean and longest time between two tokens, in seconds; None before the second token."""
        if self.first_ms is None or self.tokens < 2:
            return None
        return (self._last_ms - self.first_ms) / (self.tokens - 1) / 1000, self._longest_gap_ms / 1000
