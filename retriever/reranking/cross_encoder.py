"""The reranker that runs a cross-encoder of the sentence-transformers library in this process."""

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from sentence_transformers import CrossEncoder

from protocol.errors import ConfigError, RerankFailed
from retriever.reranking.base import Scores
from retriever.settings import CrossEncoderSettings

_BATCH_TEXTS = 32
"""Texts that are scored at once."""


class CrossEncoderReranker:
    """Runs a model that reads a query and a text together. Raises ConfigError if the model cannot be loaded.

    Queries take turns in one thread, in which torch uses all cores. One whose caller has given up is skipped, unless it
    has its turn already.
    """

    def __init__(self, settings: CrossEncoderSettings) -> None:
        try:
            self._model = CrossEncoder(
                settings.model,
                device=settings.device,
                revision=settings.revision,
                max_length=settings.max_sequence,
                # Weights are never unpickled.
                model_kwargs={"dtype": settings.dtype, "use_safetensors": True},
            )
        except (OSError, ValueError, KeyError, RuntimeError) as error:
            raise ConfigError(f"the reranker {settings.model} cannot be loaded: {error}") from error
        if self._model.num_labels != 1:
            raise ConfigError(f"the reranker {settings.model} has {self._model.num_labels} scores for a text, not one")
        self._pool = ThreadPoolExecutor(1, "retriever-rerank")
        # The first call is slower than the others.
        self._pool.submit(self._predict, "warm up", ["warm up"]).result()

    async def scores(self, query: str, texts: Sequence[str], wanted: int) -> Scores:  # noqa: ARG002
        """Return the score of each text. Raises RerankFailed."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, self._predict, query, texts)
        except Exception as error:
            # torch, transformers and tokenizers have no common class of errors.
            raise RerankFailed(f"the cross-encoder fails: {error}") from error

    async def close(self) -> None:
        """Wait for the query that has its turn."""
        await asyncio.to_thread(self._pool.shutdown, cancel_futures=True)

    def _predict(self, query: str, texts: Sequence[str]) -> list[float]:
        pairs = [(query, text) for text in texts]
        scores = self._model.predict(pairs, batch_size=_BATCH_TEXTS, show_progress_bar=False)
        return [float(score) for score in scores]
