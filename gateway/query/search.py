"""The search for one query's documents."""

from collections.abc import AsyncGenerator
from types import TracebackType

from gateway.query.context import QueryContext
from gateway.search.search_stages import SearchStages
from protocol.errors import InternalError, NoDocuments, UnknownCollection
from protocol.retrieval import CandidateSet, SearchRequest

_NOTHING_FOUND = CandidateSet(stage=1, of=1, docs=(), scores=(), final=True, elapsed_ms=0.0)


class Search:
    """One query's search. As a context manager, it closes in the background at the end of its block."""

    def __init__(self, context: QueryContext) -> None:
        self._context = context
        self._stages = SearchStages(context.parts.retriever, context.deadline, context.metrics, context.tasks)
        self._found: CandidateSet | None = None

    def __enter__(self) -> "Search":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stages.close()

    @property
    def documents(self) -> CandidateSet:
        """The final documents. Raises InternalError if the search ended without them."""
        if self._found is None or not self._found.final:
            raise InternalError("The search ended without its final documents.")
        return self._found

    async def stages(self, request: SearchRequest) -> AsyncGenerator[CandidateSet]:
        """The search's stages, the last of them final. Raises what ``Retriever.search`` raises, and DeadlineExceeded.

        If the query's documents are optional, an unknown or empty collection yields one final stage without documents.
        """
        query = self._context.query
        try:
            async for found in self._stages.of(self._context.trace.retrieval(request)):
                yield self._record(found)
        except (UnknownCollection, NoDocuments):
            if not query.documents_optional:
                raise
            yield self._record(_NOTHING_FOUND)

    def _record(self, found: CandidateSet) -> CandidateSet:
        self._found = found
        self._context.trace.found(found)
        self._context.transcript.searched(found)
        return found
