"""The contract of a shard."""

from typing import Protocol

from protocol.parts import Retriever


class Shard(Retriever, Protocol):
    """A retriever that keeps some of the documents, and speaks for some of the idempotency keys of all shards."""

    async def claim_key(self, tenant: str, key: str, body_hash: str) -> None:
        """Bind an idempotency key to the hash of a body, whoever takes in what stands in it.

        Doing so twice does no harm. Raises IdempotencyMismatch where the key is another body's, and StorageFull.
        """
