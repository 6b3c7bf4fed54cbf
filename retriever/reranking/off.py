"""No reranking: the twins of a reranker and its stage if none is configured."""

from collections.abc import AsyncGenerator, Sequence

from protocol.errors import InvalidRequest
from protocol.retrieval import CandidateSet, SearchRequest
from retriever.reranking.base import Scores, Search


class NoReranker:
    """Refuses to score."""

    async def scores(self, query: str, texts: Sequence[str], wanted: int) -> Scores:  # noqa: ARG002
        """Raise InvalidRequest."""
        raise _none_configured()

    async def close(self) -> None:
        """Do nothing."""


class NoReranking:
    """A search as it is."""

    def stages(self, request: SearchRequest, search: Search) -> AsyncGenerator[CandidateSet, None]:
        """Return the search's stages. Raises InvalidRequest if the request asks for reranking."""
        if request.rerank:
            raise _none_configured()
        return search(request)


def _none_configured() -> InvalidRequest:
    return InvalidRequest("no reranker is configured (retriever.reranker)", param="rerank")
