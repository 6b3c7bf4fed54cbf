"""Create the reranker that the settings name, and the stage that uses it; their twins if none is configured."""

from collections.abc import AsyncGenerator, Sequence

from protocol.errors import InvalidRequest
from protocol.retrieval import CandidateSet, SearchRequest
from retriever.reranking.base import Reranker, Reranking, Score, Scores, Search
from retriever.reranking.endpoint import EndpointReranker
from retriever.reranking.stage import RerankStage
from retriever.settings import EndpointRerankerSettings, NoRerankerSettings, RerankerSettings


class NoReranker:
    """Refuses to score."""

    async def scores(self, query: str, texts: Sequence[str], wanted: int) -> Scores:  # noqa: ARG002
        """Raise InvalidRequest."""
        raise _none_configured()

    async def close(self) -> None:
        """Do nothing."""


def not_reranked(request: SearchRequest, search: Search) -> AsyncGenerator[CandidateSet, None]:
    """Return the search's stages. Raises InvalidRequest if the request asks for reranking."""
    if request.rerank:
        raise _none_configured()
    return search(request)


def _none_configured() -> InvalidRequest:
    return InvalidRequest("no reranker is configured (retriever.reranker)", param="rerank")


def build_reranker(settings: RerankerSettings) -> Reranker:
    """Create a reranker and load its model. Raises ConfigError."""
    match settings:
        case NoRerankerSettings():
            return NoReranker()
        case EndpointRerankerSettings():
            return EndpointReranker(settings)
        case _:
            # This import takes seconds because it loads torch.
            from retriever.reranking.cross_encoder import CrossEncoderReranker

            return CrossEncoderReranker(settings)


def build_reranking(settings: RerankerSettings, score: Score) -> Reranking:
    """Return what reranks the results of searches by ``score``, or leaves them as they are."""
    return not_reranked if isinstance(settings, NoRerankerSettings) else RerankStage(score, settings).stages
