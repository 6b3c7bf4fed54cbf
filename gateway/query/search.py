"""The search for one query's documents."""

from collections.abc import AsyncGenerator
from types import TracebackType

from gateway.query.closing import close_iterator, finish_iterator
from gateway.query.context import QueryContext
from protocol.errors import InternalError, NoDocuments, UnknownCollection
from protocol.retrieval import CandidateSet

_NOTHING_FOUND = CandidateSet(stage=1, of=1, docs=(), scores=(), final=True, elapsed_ms=0.0)


class Search:
    """One query's search. As a context manager, it closes in the background at the end of its block."""

    def __init__(self, context: QueryContext) -> None:
        self._context = context
        self._stages: AsyncGenerator[CandidateSet] | None = None
        self._found: CandidateSet | None = None

    def __enter__(self) -> "Search":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._stages is not None:
            self._context.tasks.start(close_iterator(self._stages))

    @property
    def documents(self) -> CandidateSet:
        """The final documents. Raises InternalError if the search ended without them."""
        if self._found is None or not self._found.final:
            raise InternalError("The search ended without its final documents.")
        return self._found

    async def stages(self) -> AsyncGenerator[CandidateSet]:
        """The search's stages, the last of them final. Raises what ``Retriever.search`` raises, and DeadlineExceeded.

        If the query's documents are optional, an unknown or empty collection yields one final stage without documents.
        """
        context, before_ms = self._context, 0.0
        stages = self._stages = context.parts.retriever.search(context.trace.retrieval(context.query.search))
        try:
            async for found in context.deadline.each(stages):
                context.metrics.stage(found, (found.elapsed_ms - before_ms) / 1000)
                before_ms = found.elapsed_ms
                if found.final:
                    # The end of the stream is a message of its own, which the query need not wait for.
                    context.tasks.start(finish_iterator(stages))
                    self._stages = None
                yield self._record(found)
                if found.final:
                    return
        except (UnknownCollection, NoDocuments):
            if not context.query.documents_optional:
                raise
            yield self._record(_NOTHING_FOUND)

    def _record(self, found: CandidateSet) -> CandidateSet:
        self._found = found
        self._context.trace.found(found)
        self._context.transcript.searched(found)
        if found.missing_shards and found.final:
            self._context.metrics.partial()
        return found
