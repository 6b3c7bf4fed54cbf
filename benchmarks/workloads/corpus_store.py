"""The corpora of data sets in a retriever whose folder is kept, so that a later run embeds nothing anew."""

import asyncio

import msgspec

from benchmarks.measuring.progress import Progress
from benchmarks.workloads.datasets import Dataset
from protocol.errors import InternalError
from protocol.retrieval import Chunk, SearchRequest
from retriever.retriever import Retriever

TENANT = "bench"
BATCH = 2000
"""Documents of one ingestion job."""


async def ingest_corpus(retriever: Retriever, dataset: Dataset, progress: Progress) -> int:
    """Put the corpus in, as a collection of its name, and count its documents; what is there already costs seconds.

    When it returns, searches go through the index that so many documents should have.

    Raises what the retriever raises, and InternalError when a document is refused.
    """
    lines = [
        msgspec.json.encode({"id": document.doc_id, "title": document.title, "text": document.text})
        for document in dataset.documents()
    ]
    for first in range(0, len(lines), BATCH):
        job = await retriever.put_batch(TENANT, dataset.corpus, b"\n".join(lines[first : first + BATCH]))
        while not job.ended:
            await asyncio.sleep(0.1)
            job = await retriever.get_job(TENANT, job.job_id)
            progress("ingesting", first + job.stored + job.unchanged, len(lines))
        if job.failed_documents:
            raise InternalError(f"the corpus did not go in whole: {job.last_error}")
    await retriever.wait_for_indexes()
    return len(lines)


async def search_corpus(retriever: Retriever, dataset: Dataset, query: str, top_k: int) -> tuple[Chunk, ...]:
    """The ``top_k`` chunks of the corpus that the last stage of a search finds, best first.

    Raises what the retriever raises.
    """
    async for candidates in retriever.search(SearchRequest(TENANT, dataset.corpus, query, top_k)):
        last = candidates
    return last.docs
