"""What one query went through, and when."""

from collections.abc import Callable
from typing import Literal

import msgspec

from protocol.generation import PrefillResult

EntryName = Literal[
    "retrieval_stage", "speculation", "queue", "kv_load", "prefill", "first_token", "decode", "end"
]  # fmt: skip


class TimelineEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """Something that took ``duration_ms``, or happened at once, from ``at_ms`` after the query's arrival on.

    A ``speculation`` lasts until it is clear what becomes of it, and its ``detail`` says what: ``confirmed``, ``wrong``
    or ``gave_way``. ``kv_load`` lies at the beginning of ``prefill``, and both within a speculation that was confirmed.
    The ``first_token`` is the moment at which it could leave.
    """

    name: EntryName
    at_ms: float
    duration_ms: float | None = None
    detail: str | None = None


class Timeline:
    """The phases and moments of a query, as the gateway's clock saw them; ``now_ms`` tells the time since its arrival.

    What engines measure themselves, loading and prefilling, ends with the step that reported it, and does not begin
    before the engine was asked.
    """

    def __init__(self, now_ms: Callable[[], float]) -> None:
        self.now_ms = now_ms
        self._entries: list[TimelineEntry] = []
        self._stage_began_ms = 0.0

    @property
    def entries(self) -> tuple[TimelineEntry, ...]:
        """All that is known so far, by the time at which it began."""
        return tuple(sorted(self._entries, key=lambda entry: entry.at_ms))

    def moment(self, name: EntryName) -> float:
        """Note what happens now; when that is."""
        at_ms = self.now_ms()
        self._entries.append(TimelineEntry(name, at_ms))
        return at_ms

    def phase(self, name: EntryName, began_ms: float, detail: str | None = None) -> None:
        """Note what began then, and ends now."""
        self._add(name, began_ms, self.now_ms(), detail)

    def stage(self, number: int, of: int) -> None:
        """Note a stage of the search; it began when the one before it ended."""
        self.phase("retrieval_stage", self._stage_began_ms, f"stage {number} of {of}")
        self._stage_began_ms = self.now_ms()

    def queued(self, asked_ms: float, overtakes: int) -> None:
        """Note a wait for the query's turn, which has come."""
        self.phase("queue", asked_ms, f"overtakes: {overtakes}" if overtakes else None)

    def prefilled(self, prefill: PrefillResult, asked_ms: float, ended_ms: float) -> None:
        """Note what the engine reported with its first step."""
        began_ms = max(asked_ms, ended_ms - prefill.prefill_ms)
        if prefill.kv_load_ms:
            tiers = ", ".join(f"{tokens} from {tier.value}" for tier, tokens in prefill.loaded.items() if tokens)
            self._add("kv_load", began_ms, min(ended_ms, began_ms + prefill.kv_load_ms), tiers or None)
        cached = f"{prefill.cached_tokens} of {prefill.prompt_tokens} tokens cached"
        self._add("prefill", began_ms, ended_ms, cached)

    def _add(self, name: EntryName, began_ms: float, ended_ms: float, detail: str | None) -> None:
        self._entries.append(TimelineEntry(name, began_ms, ended_ms - began_ms, detail))
