"""The interface of a shard."""

from collections.abc import Sequence
from typing import Protocol

from protocol.parts import Retriever
from retriever.reranking.base import Scores


class Shard(Retriever, Protocol):
    """A retriever that stores some of the documents and checks some of the idempotency keys of all shards."""

    async def claim_key(self, tenant: str, key: str, body_hash: str) -> None:
        """Bind an idempotency key to the hash of a body, no matter which shards store its documents.

        Claiming twice is harmless. Raises IdempotencyMismatch if the key is bound to a different body, and StorageFull.
        """

    async def rerank(self, query: str, texts: Sequence[str], wanted: int) -> Scores:
        """Return the score of each text, at least those of the ``wanted`` best ones, whatever shards store them.

        Raises RerankFailed, and InvalidRequest if no reranker is configured.
        """
