"""Create the reranker that the settings name, and the stage that uses it."""

from retriever.reranking.base import Reranker, Reranking, Score
from retriever.reranking.endpoint import EndpointReranker
from retriever.reranking.off import NoReranker, NoReranking
from retriever.reranking.stage import RerankStage
from retriever.settings import EndpointRerankerSettings, NoRerankerSettings, RerankerSettings


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
    """Create the stage that reranks by ``score``, or that of no reranking."""
    return NoReranking() if isinstance(settings, NoRerankerSettings) else RerankStage(score, settings)
