"""Corpora in a retriever whose folder is kept, so that later runs embed nothing."""

import asyncio

import msgspec

from examine.measuring import Progress
from protocol.errors import InternalError
from protocol.graph import GraphMode
from protocol.retrieval import CandidateSet, SearchKind, SearchRequest
from ragtree_lab.workloads.datasets import Questions
from retriever.retriever import Retriever

TENANT = "bench"
BATCH = 2000
"""Documents per ingestion job."""


async def ingest_corpus(retriever: Retriever, dataset: Questions, progress: Progress) -> int:
    """Ingest the corpus into a collection of its name; return the number of documents. A second run takes seconds.

    On return, the collection has the kind of index that its size calls for. Raises what the retriever raises, and
    InternalError if a document is refused.
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
            raise InternalError(f"the corpus was not ingested completely: {job.last_error}")
    await retriever.wait_for_indexes()
    return len(lines)


async def search_corpus(
    retriever: Retriever,
    dataset: Questions,
    query: str,
    top_k: int,
    kind: SearchKind | None = None,
    context: str = "",
    mode: GraphMode = GraphMode.NAIVE,
) -> CandidateSet:
    """Return the last stage of a search for ``top_k`` chunks. Raises what the retriever raises."""
    request = SearchRequest(TENANT, dataset.corpus, query, top_k, context, search=kind, mode=mode)
    async for candidates in retriever.search(request):
        last = candidates
    return last
