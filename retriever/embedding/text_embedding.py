"""Embeds texts for callers."""

import numpy as np

from protocol.embeddings import EmbeddingRequest, Embeddings
from protocol.errors import InvalidRequest, UnknownModel
from retriever.embedding.base import Embedder, Vector


class TextEmbedding:
    """Embeds the texts of callers like documents or queries. No text is cut: one that is too long is refused."""

    def __init__(self, embedder: Embedder) -> None:
        self._embedder = embedder

    def embed(self, request: EmbeddingRequest) -> Embeddings:
        """The vectors of the texts.

        Raises UnknownModel, InvalidRequest for other dimensions and for a text that is too long, and what the embedder
        raises.
        """
        embedder = self._embedder
        if request.model != embedder.name:
            raise UnknownModel(f"The embedder {request.model!r} is not served; use {embedder.name!r}.", "model")
        if request.dimensions not in (None, embedder.dimension):
            raise InvalidRequest(f"The vectors of {embedder.name} have {embedder.dimension} dimensions.", "dimensions")
        encodings = embedder.tokenizer.encode_batch(list(request.texts), add_special_tokens=False)
        lengths = [len(encoding.ids) for encoding in encodings]
        longest = max(lengths, default=0)
        if longest > embedder.max_tokens:
            raise InvalidRequest(
                f"Text {lengths.index(longest)} has {longest:,} tokens; the limit is {embedder.max_tokens:,}.", "input"
            )
        rows = np.ascontiguousarray(self._rows(request), "<f4")
        return Embeddings(tuple(row.tobytes() for row in rows), sum(lengths))

    def _rows(self, request: EmbeddingRequest) -> Vector:
        if request.kind == "document":
            return self._embedder.embed_documents(request.texts)
        return np.stack([self._embedder.embed_query(text) for text in request.texts])
