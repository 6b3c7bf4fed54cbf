"""Merge what several shards answer: their jobs for one upload, and their listings."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from protocol.documents import CollectionInfo, DocumentPage, IngestJob, JobStatus, RetrieverStats
from protocol.errors import UnknownJob
from retriever.store.jobs import ERRORS_KEPT


def merged_page(pages: Sequence[DocumentPage], limit: int) -> DocumentPage:
    """Merge the pages of all shards, each with up to ``limit`` documents after the same id, which cursors are."""
    documents = sorted((info for page in pages for info in page.documents), key=lambda info: info.document_id)
    more = len(documents) > limit or any(page.next_cursor is not None for page in pages)
    return DocumentPage(tuple(documents[:limit]), documents[:limit][-1].document_id if more else None)


def merged_collections(listed: Iterable[Sequence[CollectionInfo]]) -> list[CollectionInfo]:
    """Merge collections by name, adding up their documents and chunks."""
    held: dict[str, list[CollectionInfo]] = defaultdict(list)
    for infos in listed:
        for info in infos:
            held[info.name].append(info)
    return [
        CollectionInfo(
            name,
            sum(part.documents for part in parts),
            sum(part.chunks for part in parts),
            next((part.search for part in parts if part.search is not None), None),
        )
        for name, parts in sorted(held.items())
    ]


def merged_stats(stats: Iterable[RetrieverStats]) -> RetrieverStats:
    """Add up the counts, and report the fullest disk."""
    parts = list(stats)
    ingested: Counter[str] = sum((Counter(part.ingested) for part in parts), Counter())
    fullest = min(parts, key=lambda part: part.disk_free_bytes / max(1, part.disk_bytes))
    return RetrieverStats(
        {outcome: ingested[outcome] for outcome in parts[0].ingested},
        sum(part.queued for part in parts),
        fullest.disk_bytes,
        fullest.disk_free_bytes,
    )


_PART = re.compile(r"(\d{1,9})-([^.]+)")


def merged_job(jobs: Mapping[int, IngestJob]) -> IngestJob:
    """Merge jobs, by shard, into one whose id names them all.

    Errors are sorted by line. The job ends when all jobs have ended, and fails only if no shard stored anything.
    """
    parts = jobs.values()
    errors = sorted((error for job in parts for error in job.errors), key=lambda error: error.line or 0)
    return IngestJob(
        job_id=".".join(f"{shard}-{job.job_id}" for shard, job in sorted(jobs.items())),
        collection=next(iter(parts)).collection,
        status=_status(jobs),
        total=sum(job.total for job in parts),
        stored=sum(job.stored for job in parts),
        unchanged=sum(job.unchanged for job in parts),
        failed_documents=sum(job.failed_documents for job in parts),
        created_at=min(job.created_at for job in parts),
        updated_at=max(job.updated_at for job in parts),
        errors=tuple(errors[:ERRORS_KEPT]),
    )


def shard_job_ids(job_id: str, shards: int) -> dict[int, str]:
    """Return the job ids, by shard, of an id that ``merged_job`` created. Raises UnknownJob."""
    parts = [_PART.fullmatch(part) for part in job_id.split(".")]
    named = {int(part[1]): part[2] for part in parts if part}
    if len(named) < len(parts) or list(named) != sorted(named) or max(named) >= shards:
        raise UnknownJob(f"there is no job {job_id!r}", param="job_id")
    return named


def _status(jobs: Mapping[int, IngestJob]) -> JobStatus:
    statuses = {job.status for job in jobs.values()}
    if all(job.ended for job in jobs.values()):
        return "completed" if "completed" in statuses else "failed"
    return "queued" if statuses == {"queued"} else "in_progress"
