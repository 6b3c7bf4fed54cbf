"""The choice of an embedder by its settings."""

from retriever.embedding.base import Embedder
from retriever.embedding.hashing import HashingEmbedder
from retriever.embedding.openai import OpenAIEmbedder
from retriever.settings import EmbedderSettings, HashingSettings, OpenAISettings


def build_embedder(settings: EmbedderSettings) -> Embedder:
    """The embedder that the settings name, its model loaded. Raises ConfigError, or Unavailable for an endpoint."""
    match settings:
        case HashingSettings():
            return HashingEmbedder(settings)
        case OpenAISettings():
            return OpenAIEmbedder(settings)
        case _:
            # Importing the library takes seconds, and pulls torch in.
            from retriever.embedding.sentence_transformer import SentenceTransformerEmbedder

            return SentenceTransformerEmbedder(settings)
