"""The retriever, or one shard of it, as a Ray Serve deployment: one replica, which owns its data folder."""

import asyncio

from retriever.build import build_retriever
from retriever.machine import return_large_blocks
from retriever.sharding.shard_group import Shard
from services.config import Config
from services.observability.spans import open_spans
from services.serve.forwarding import serves


@serves(Shard, "_retriever")
class RetrieverDeployment:
    """Runs a retriever and its ingest worker."""

    async def __init__(self, config: Config, shard: int) -> None:  # type: ignore[misc]  # Serve awaits it
        return_large_blocks()
        config.observability.configure_logging()
        self._spans = open_spans(config.observability, "retriever")
        folder = config.shard_folders.of(shard)
        self._retriever = build_retriever(config.retriever, folder, tracer=self._spans.tracer)
        await self._retriever.start()

    async def __del__(self) -> None:
        """Close the retriever and send the last spans. Serve calls this before it ends the replica."""
        await self._retriever.close()
        await asyncio.to_thread(self._spans.close)
