"""Plan the number of stages of a search."""

from retriever.settings import IndexSettings

_LATEST_WEIGHT = 0.2


class StagePlanner:
    """Estimates how long a search takes, and thus into how many stages to cut it.

    It keeps a running average of the seconds per unit of work. A unit is what the index counts: a row, a list, or a
    candidate of a beam.
    """

    def __init__(self, settings: IndexSettings) -> None:
        self._settings = settings
        self._seconds_per_unit = 0.0

    def stages(self, units: int) -> int:
        """Return the number of stages for this work: one while nothing is known or if it is too short to cut."""
        expected_ms = 1000 * units * self._seconds_per_unit
        return max(1, min(self._settings.stages, int(expected_ms / self._settings.stage_ms)))

    def learn(self, units: int, seconds: float) -> None:
        """Record how long some work took."""
        if units:
            weight = _LATEST_WEIGHT if self._seconds_per_unit else 1.0
            self._seconds_per_unit += weight * (seconds / units - self._seconds_per_unit)
