"""Retrievers that are killed by what they read: by every text with the word "deadly" that they embed.

``mortal_retriever.py`` reads ``[folder, documents, settings]`` as JSON lines from standard input. For each it forks a
process that uploads the documents to the retriever in the folder, and waits until its queue is empty. It prints how
the process ended, and how many documents it has counted by their outcome. Forking avoids importing the retriever again.
"""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from retriever_cases import TENANT, lines, running

from retriever.embedding.base import Vector
from retriever.embedding.hashing import HashingEmbedder


class MortalEmbedder(HashingEmbedder):
    def embed_documents(self, texts: Sequence[str]) -> Vector:
        if any("deadly" in text for text in texts):
            os.kill(os.getpid(), signal.SIGKILL)
        return super().embed_documents(texts)


async def ingest(folder: Path, documents: list[dict[str, Any]], settings: dict[str, Any]) -> dict[str, int]:
    async with running(folder, MortalEmbedder(), **settings) as retriever:
        if documents:
            await retriever.put_batch(TENANT, "default", lines(documents))
        while (stats := await retriever.stats()).queued:
            await asyncio.sleep(0.002)
        return stats.ingested


def main() -> None:
    for line in sys.stdin:
        folder, documents, settings = json.loads(line)
        read, write = os.pipe()
        child = os.fork()
        if not child:
            counts = asyncio.run(ingest(Path(folder), documents, settings))
            os.write(write, json.dumps(counts).encode())
            os._exit(0)
        os.close(write)
        with os.fdopen(read) as pipe:
            counts = json.loads(pipe.read() or "{}")
        _, status = os.waitpid(child, 0)
        print(json.dumps([os.waitstatus_to_exitcode(status), counts]), flush=True)


if __name__ == "__main__":
    main()
