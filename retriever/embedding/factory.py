"""Create the embedder that the settings name."""

from retriever.embedding.base import Embedder
from retriever.embedding.hashing import HashingEmbedder
from retriever.settings import EmbedderSettings, HashingSettings, OpenAISettings


def build_embedder(settings: EmbedderSettings) -> Embedder:
    """Create an embedder and load its model. Raises ConfigError, or Unavailable if an endpoint does not answer."""
    match settings:
        case HashingSettings():
            return HashingEmbedder(settings)
        case OpenAISettings():
            # The client has hundreds of modules of types, which no other process of the stack needs.
            from retriever.embedding.openai import OpenAIEmbedder

            return OpenAIEmbedder(settings)
        case _:
            # This import takes seconds because it loads torch.
            from retriever.embedding.sentence_transformer import SentenceTransformerEmbedder

            return SentenceTransformerEmbedder(settings)
