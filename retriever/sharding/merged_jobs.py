"""Merge the jobs that several shards created for one upload."""

import re
from collections.abc import Mapping

from protocol.documents import IngestJob, JobStatus
from protocol.errors import UnknownJob
from retriever.store.jobs import ERRORS_KEPT

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
