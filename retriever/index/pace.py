"""How quickly an index is read, and so in how many stages a search is worth cutting."""

from retriever.settings import IndexSettings

_WEIGHT_OF_LATEST = 0.2


class Pace:
    """A running estimate of the seconds that a unit of work takes, learnt from searches.

    A unit is what the index counts its work in: a row, a list, or a candidate of a beam.
    """

    def __init__(self, settings: IndexSettings) -> None:
        self._settings = settings
        self._seconds_per_unit = 0.0

    def stages(self, units: int) -> int:
        """In how many stages to do so much: in one while nothing is known, or where it is over too soon."""
        expected_ms = 1000 * units * self._seconds_per_unit
        return max(1, min(self._settings.stages, int(expected_ms / self._settings.stage_ms)))

    def learn(self, units: int, seconds: float) -> None:
        """Hear how long it took to do so much."""
        if units:
            weight = _WEIGHT_OF_LATEST if self._seconds_per_unit else 1.0
            self._seconds_per_unit += weight * (seconds / units - self._seconds_per_unit)
