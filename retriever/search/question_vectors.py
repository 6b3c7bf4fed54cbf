"""The vectors of a search's question."""

import numpy as np
from opentelemetry.trace import Tracer

from protocol.retrieval import SearchRequest
from retriever.embedding.base import Embedder, Vector, unit_rows
from retriever.search.embedding_span import embedding_span


class QuestionVectors:
    """Embeds what one search asks for, each text once, when it is first wanted. Raises what the embedder raises."""

    def __init__(self, request: SearchRequest, embedder: Embedder, tracer: Tracer) -> None:
        self._request = request
        self._embedder = embedder
        self._tracer = tracer
        self._known: dict[str, Vector] = {}

    def searched(self) -> Vector:
        """The query's vector, [dimension]. With a context, the mean of those with and without it.

        So a follow-up finds what the conversation is about, and a change of subject what is new
        (docs/retrieval.md has figures).
        """
        request = self._request
        if not request.context:
            return self.in_context()
        vectors = self._of(request.query, request.in_context)
        return unit_rows(np.stack(vectors).mean(0, keepdims=True)).reshape(-1)

    def in_context(self) -> Vector:
        """The vector of the query behind its context, [dimension]."""
        return self._of(self._request.in_context)[0]

    def _of(self, *texts: str) -> list[Vector]:
        new = [text for text in texts if text not in self._known]
        if new:
            with embedding_span(self._tracer, self._embedder, self._request.traceparent):
                self._known |= {text: self._embedder.embed_query(text) for text in new}
        return [self._known[text] for text in texts]
