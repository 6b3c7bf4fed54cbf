"""The attempts to generate a query's answer, and the engines that they have lost."""

from typing import NamedTuple

from protocol.errors import EngineDied, EngineFailed


class Attempt(NamedTuple):
    """An attempt to generate the answer of ``query_id``. Each attempt is admitted on its own, under its own plan.

    ``speculation`` numbers the query's speculations from 1; 0 means that the documents are final. ``retry`` counts the
    instances that the query has lost before this attempt. ``rewriting``: it generates a question for the search.
    """

    query_id: str
    speculation: int = 0
    retry: int = 0
    rewriting: bool = False

    @property
    def plan_id(self) -> str:
        """Id of the attempt's plan in the controller and in the engine, unique among all attempts.

        The first attempt on final documents has the query's own id. Nothing parses the suffixes of the others.
        """
        if self.rewriting:
            return f"{self.query_id}~rewrite"
        if self.speculation:
            return f"{self.query_id}~{self.speculation}"
        if self.retry:
            return f"{self.query_id}~retry{self.retry}"
        return self.query_id


class EngineLosses:
    """Counts the engines that died while they may have computed a query, be it for a guess or a rewriting of it.

    The first one may have died for any reason. After the second one, the query itself is the likely reason.
    """

    def __init__(self) -> None:
        self._computed = 0

    def note(self, error: EngineDied) -> None:
        """Note a loss. Raises EngineFailed if the query must be given to no other engine."""
        self._computed += error.begun
        if self._computed > 1:
            raise EngineFailed("Two engines died while they computed this request. It is not tried again.") from error
