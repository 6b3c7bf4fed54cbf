"""The vectors of searches' questions, and the span of embedding them, which is the retriever's only one."""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

import numpy as np
from blake3 import blake3
from cachetools import LRUCache
from opentelemetry.trace import SpanKind, Tracer

from protocol.retrieval import SearchRequest
from protocol.tracing import OPERATION, PROVIDER, REQUEST_MODEL, context_of, end
from retriever.embedding.base import Embedder, Vector, unit_rows

_REMEMBERED = 4096
"""Vectors of questions, of all tenants: 6 MiB, if they have 384 dimensions."""


class QuestionEmbedder:
    """Embeds questions, and remembers the last ones. Thread-safe.

    Each tenant's are its own, so that the time of a search tells nobody what others have asked.
    """

    def __init__(self, embedder: Embedder, tracer: Tracer) -> None:
        self._embedder = embedder
        self._tracer = tracer
        # By tenant and digest of the text, which may be long.
        self._known: LRUCache[tuple[str, bytes], Vector] = LRUCache(_REMEMBERED)
        self._lock = Lock()

    def embed(self, tenant: str, texts: tuple[str, ...], traceparent: str | None) -> list[Vector]:
        """Return the vector of each text, [dimension], not to be changed. Raises what the embedder raises."""
        keys = {text: (tenant, blake3(text.encode("utf-8", "surrogatepass")).digest()) for text in texts}
        with self._lock:
            found = {text: vector for text, key in keys.items() if (vector := self._known.get(key)) is not None}
        new = [text for text in keys if text not in found]
        if new:
            with self._span(traceparent):
                embedded = {text: self._embedder.embed_query(text) for text in new}
            for vector in embedded.values():
                # Others get the same one.
                vector.setflags(write=False)
            found |= embedded
            with self._lock:
                self._known.update({keys[text]: vector for text, vector in embedded.items()})
        return [found[text] for text in texts]

    @contextmanager
    def _span(self, traceparent: str | None) -> Iterator[None]:
        """Trace the block as an embedding, as part of the caller's trace. Does nothing without a ``traceparent``."""
        if traceparent is None:
            yield
            return
        attributes: dict[str, str | int] = {
            OPERATION: "embeddings",
            PROVIDER: "ragtree",
            REQUEST_MODEL: self._embedder.name,
            "gen_ai.embeddings.dimension.count": self._embedder.dimension,
        }
        span = self._tracer.start_span(
            f"embeddings {self._embedder.name}", context_of(traceparent), SpanKind.CLIENT, attributes=attributes
        )
        try:
            yield
        except BaseException as error:
            end(span, error)
            raise
        end(span)


class QuestionVectors:
    """The vectors of what one search asks for, embedded when they are wanted. Raises what the embedder raises."""

    def __init__(self, request: SearchRequest, questions: QuestionEmbedder) -> None:
        self._request = request
        self._questions = questions

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
        """The vector of the query after its context, [dimension]."""
        return self._of(self._request.in_context)[0]

    def _of(self, *texts: str) -> list[Vector]:
        return self._questions.embed(self._request.tenant, texts, self._request.traceparent)
