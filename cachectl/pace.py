"""The controller's pace: times that it keeps to, and that nobody who runs it has to choose."""

from typing import NamedTuple, Self

_LEASE_IN_QUERIES = 3


class Pace(NamedTuple):
    """Times in seconds. Tests shorten them.

    - ``lease_s``: from a plan's grant until it counts as lost if it is not completed.
    - ``first_token_s``: for a plan's first token. Later, other queries stop waiting for it.
    - ``delete_timeout_s``: how long the deletion of a document waits for queries that use it.
    """

    lease_s: float = 900.0
    first_token_s: float = 180.0
    delete_timeout_s: float = 30.0

    @classmethod
    def of_queries(cls, timeout_s: float) -> Self:
        """The pace for queries that end after so many seconds. Leases outlive them.

        The controller remembers a deletion for one lease. A query that found the document before the deletion may ask
        for a plan as late as its own timeout.
        """
        return cls(lease_s=_LEASE_IN_QUERIES * timeout_s)
