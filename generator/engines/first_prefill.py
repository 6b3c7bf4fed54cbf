"""The prefill in front of a composed plan, reported as a part of the plan."""

from typing import NamedTuple

import msgspec

from protocol.generation import GenerationStep, PrefillResult
from protocol.kv import LostCopy
from protocol.plans import PrefillPlan


class FirstPrefill(NamedTuple):
    """What the ``first`` prefill of a ``plan`` came to.

    ``prefill`` is None if none of it is kept. ``unwritten`` is that of its last step (``GenerationStep``).
    """

    plan: PrefillPlan
    first: PrefillPlan
    prefill: PrefillResult | None
    unwritten: tuple[LostCopy, ...] | None

    def alone(self, ended: GenerationStep) -> GenerationStep:
        """The step that ends the plan before its own first token. What this prefill has computed is kept."""
        return msgspec.structs.replace(ended, prefill=self.prefill, unwritten=self.unwritten)

    def in_front_of(self, step: GenerationStep) -> GenerationStep:
        """A step of the plan, with what this prefill has done for it."""
        if step.prefill is not None and self.prefill is not None:
            step = msgspec.structs.replace(step, prefill=self._joined(self.prefill, step.prefill))
        if step.unwritten is not None:
            written = None if self.unwritten is None else (*self.unwritten, *step.unwritten)
            step = msgspec.structs.replace(step, unwritten=written)
        return step

    def _joined(self, first: PrefillResult, prefill: PrefillResult) -> PrefillResult:
        """The result of both prefills. What the first one has computed was neither cached nor donated."""
        computed = {node.key for node in self.first.nodes if node.loaded_from is None}
        donated = sum(node.tokens for node in self.plan.nodes if node.donor is not None and node.donor.key in computed)
        loaded = first.loaded if first.cached_tokens <= prefill.cached_tokens else prefill.loaded
        return msgspec.structs.replace(
            prefill,
            cached_tokens=sum(loaded.values()),
            composed_tokens=max(0, prefill.composed_tokens - donated),
            prefill_ms=first.prefill_ms + prefill.prefill_ms,
            kv_load_ms=first.kv_load_ms + prefill.kv_load_ms,
            loaded=loaded,
            lost=(*first.lost, *prefill.lost),
            peers=(*first.peers, *prefill.peers),
        )
