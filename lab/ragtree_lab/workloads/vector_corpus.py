"""A corpus of synthetic documents with synthetic vectors, in the shipped retriever: only the search is real."""

import asyncio
import random
import re
from collections.abc import Sequence
from functools import lru_cache

import msgspec
import numpy as np
from tokenizers import Tokenizer

from examine.measuring import Progress
from loadtest.traffic.synthetic_corpus import SYLLABLES
from protocol.errors import InternalError, InvalidRequest
from ragtree_lab.workloads.synthetic_vectors import SyntheticVectors
from retriever.embedding.base import Vector
from retriever.embedding.hashing import word_tokenizer
from retriever.retriever import Retriever

TENANT = "bench"
COLLECTION = "vectors"
BATCH = 5000
"""Documents per ingestion job."""

_NUMBER = re.compile(r"^(?:Document|Question) (\d+)\.")


class VectorEmbedder:
    """Embedder of synthetic texts: each text names its vector."""

    def __init__(self, vectors: SyntheticVectors) -> None:
        self._vectors = vectors
        self.name = "synthetic"
        self.dimension = vectors.dimension
        self.max_tokens = 8192
        self.fingerprint = f"synthetic:{vectors.count}x{vectors.dimension}"
        self.tokenizer: Tokenizer = word_tokenizer()
        # Generating a question's vector takes longer than embedding one with a model.
        self.question = lru_cache(maxsize=4096)(vectors.question)

    def embed_query(self, text: str) -> Vector:
        """Return the vector of a question, [dimension]."""
        return self.question(_number(text))

    def embed_documents(self, texts: Sequence[str]) -> Vector:
        """Return the vectors of documents, [n, dimension]."""
        numbers = [_number(text) for text in texts]
        first = min(numbers)
        rows: Vector = self._vectors.documents(first, max(numbers) - first + 1)[np.array(numbers) - first]
        return rows


def question(number: int) -> str:
    """Return the text of a question."""
    return f"Question {number}. What is known about this?"


def document(number: int, words: int) -> str:
    """Return the text of a document with ``words`` synthetic words. No two are alike."""
    draws = random.Random(number)  # noqa: S311 - made-up text needs no secrecy
    return f"Document {number}. " + " ".join(
        "".join(draws.choices(SYLLABLES, k=draws.randint(2, 3))) for _ in range(words)
    )


async def ingest_vectors(retriever: Retriever, count: int, words: int, progress: Progress) -> None:
    """Ingest the documents. Documents that are already stored cost little. Raises what the retriever raises."""
    for first in range(await _present(retriever), count, BATCH):
        numbers = range(first, min(count, first + BATCH))
        lines = [msgspec.json.encode({"id": f"d{number}", "text": document(number, words)}) for number in numbers]
        job = await retriever.put_batch(TENANT, COLLECTION, b"\n".join(lines))
        while not job.ended:
            await asyncio.sleep(0.1)
            job = await retriever.get_job(TENANT, job.job_id)
            progress("ingesting", first + job.stored + job.unchanged, count)
        if job.failed_documents:
            raise InternalError(f"the corpus was not ingested completely: {job.last_error}")


async def _present(retriever: Retriever) -> int:
    """Return the number of stored documents, in whole batches."""
    held = {info.name: info.documents for info in await retriever.list_collections(TENANT)}
    return held.get(COLLECTION, 0) // BATCH * BATCH


def _number(text: str) -> int:
    named = _NUMBER.match(text)
    if named is None:
        raise InvalidRequest(f"there is no synthetic vector for {text[:40]!r}")
    return int(named[1])
