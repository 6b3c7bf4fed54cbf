"""One attempt to generate a query's answer."""

from typing import NamedTuple


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
