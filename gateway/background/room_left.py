"""Whether a job that evicts nothing may still find room in the tiers."""

from gateway.background.idle_prefill import Outcome

_REFUSALS = 64
"""After this number of prefills in a row without room, the next ones find none either, whatever their lengths."""


class RoomLeft:
    """Expects room until many prefills in a row have found none: one that is too long says nothing of shorter ones."""

    def __init__(self) -> None:
        self._refused = 0

    @property
    def expected(self) -> bool:
        """Whether to try another prefill."""
        return self._refused < _REFUSALS

    def note(self, outcome: Outcome) -> None:
        """Record what became of a prefill that was tried."""
        if outcome == "no_room":
            self._refused += 1
        elif outcome == "computed":
            self._refused = 0
