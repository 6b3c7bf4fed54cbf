"""The times of one query's tokens."""


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
