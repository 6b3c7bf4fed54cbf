"""Ingest jobs, the queue of their items, and idempotency keys."""

import sqlite3
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable, Container, Sequence
from typing import Literal, NamedTuple

import msgspec

from protocol.documents import IngestJob, JobError
from protocol.errors import IdempotencyMismatch, UnknownJob
from retriever.store.database import Transaction
from retriever.store.incoming import IncomingDocument

ERRORS_KEPT = 100
"""How many errors a job lists. Further ones are only counted."""

Outcome = Literal["stored", "unchanged", "failed"]


class JobItem(NamedTuple):
    """A queued document. ``seq`` is its arrival order over all jobs, ``bytes`` what it takes in the queue."""

    seq: int
    job_id: str
    collection: int
    document_id: str
    line: int | None
    bytes: int


class ItemResult(NamedTuple):
    """The outcome of an item."""

    item: JobItem
    outcome: Outcome
    error: JobError | None = None


class Jobs:
    """All jobs, the queue of their items, and idempotency keys. Each call runs in the given transaction."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock

    def find_by_key(self, transaction: Transaction, tenant: str, key: str, body_hash: str) -> IngestJob | None:
        """Return the job that an idempotency key started, or None. Raises IdempotencyMismatch for a different body."""
        row = transaction.execute(
            """SELECT jobs.*, body_hash FROM idempotency_keys k JOIN jobs ON jobs.id = k.job
               WHERE k.tenant = ? AND k.key = ?""",
            (tenant, key),
        ).fetchone()
        if row is None:
            return None
        _check_hash(row, body_hash)
        return _job(row)

    def remember_key(self, transaction: Transaction, tenant: str, key: str, body_hash: str, job_id: str) -> None:
        """Bind an idempotency key to the job that it started."""
        insert = "INSERT INTO idempotency_keys (tenant, key, body_hash, job) VALUES (?, ?, ?, ?)"
        transaction.execute(insert, (tenant, key, body_hash, job_id))

    def claim_key(self, transaction: Transaction, tenant: str, key: str, body_hash: str) -> None:
        """Bind an idempotency key to a body whose jobs other shards keep, or extend an existing claim.

        Raises IdempotencyMismatch for a different body, without extending the claim.
        """
        transaction.execute(
            """INSERT INTO claimed_keys (tenant, key, body_hash, since) VALUES (?, ?, ?, ?)
               ON CONFLICT DO UPDATE SET since = excluded.since WHERE body_hash = excluded.body_hash""",
            (tenant, key, body_hash, self._clock()),
        )
        select = "SELECT body_hash FROM claimed_keys WHERE tenant = ? AND key = ?"
        _check_hash(transaction.execute(select, (tenant, key)).fetchone(), body_hash)

    def create(
        self,
        transaction: Transaction,
        tenant: str,
        name: str,
        collection: int,
        documents: Sequence[tuple[int | None, IncomingDocument]],
        errors: Sequence[JobError] = (),
    ) -> IngestJob:
        """Create a queued job from documents with their line numbers, and from the errors of invalid lines."""
        job_id = f"job_{uuid.uuid4().hex}"
        now = self._clock()
        job: sqlite3.Row = transaction.execute(
            "INSERT INTO jobs VALUES (?, ?, ?, ?, ?, 0, 0, ?, ?, ?, ?) RETURNING *",
            (
                *(job_id, tenant, name, "queued" if documents else "failed", len(documents) + len(errors)),
                *(len(errors), msgspec.json.encode(errors[:ERRORS_KEPT]).decode(), now, now),
            ),
        ).fetchone()
        payloads = ((line, document, msgspec.msgpack.encode(document)) for line, document in documents)
        transaction.executemany(
            """INSERT INTO job_items (job, tenant, collection, document_id, line, bytes, payload)
               VALUES (?, ?, ?, ?, ?, ?, ?)""",
            [
                (job_id, tenant, collection, document.document_id, line, len(payload), payload)
                for line, document, payload in payloads
            ],
        )
        return _job(job)

    def get(self, transaction: Transaction, tenant: str, job_id: str) -> IngestJob:
        """Return the current state of a job. Raises UnknownJob."""
        row = transaction.execute("SELECT * FROM jobs WHERE id = ? AND tenant = ?", (job_id, tenant)).fetchone()
        if row is None:
            raise UnknownJob(f"there is no job {job_id!r}", param="job_id")
        return _job(row)

    def waiting_tenants(self, transaction: Transaction, after: str) -> list[str]:
        """Return the tenants with queued documents, in their fixed order from the one ``after`` this one."""
        select = "SELECT DISTINCT tenant FROM job_items ORDER BY tenant <= ?, tenant"
        return [row["tenant"] for row in transaction.execute(select, (after,))]

    def next_group(
        self,
        transaction: Transaction,
        tenant: str,
        most_documents: int,
        most_bytes: int,
        suspects: Container[int] = (),
        *,
        only_short: bool = False,
    ) -> list[JobItem]:
        """Return a tenant's oldest items that fit one group: at least one, and no document twice.

        A document above ``most_bytes`` and each of the ``suspects`` is a separate group. ``only_short`` leaves out
        such long documents, and all that was uploaded after them for the same document.
        """
        rows = transaction.execute(
            """SELECT seq, job, collection, document_id, line, bytes FROM job_items i
               WHERE tenant = ? AND (NOT ? OR NOT EXISTS (
                   SELECT 1 FROM job_items e WHERE e.collection = i.collection AND e.document_id = i.document_id
                   AND e.seq <= i.seq AND e.bytes > ?))
               ORDER BY seq LIMIT ?""",
            (tenant, only_short, most_bytes, most_documents),
        )
        group: list[JobItem] = []
        seen: set[tuple[int, str]] = set()
        size = 0
        for item in map(JobItem._make, rows):
            key = (item.collection, item.document_id)
            size += item.bytes
            # A later upload of the same document must see the earlier one stored, so it waits for the next group.
            if key in seen or (group and (size > most_bytes or item.seq in suspects)):
                break
            seen.add(key)
            group.append(item)
            if item.seq in suspects:
                break
        return group

    def document(self, transaction: Transaction, item: JobItem) -> IncomingDocument | None:
        """Return the document of an item; None if it is no longer queued."""
        row = transaction.execute("SELECT payload FROM job_items WHERE seq = ?", (item.seq,)).fetchone()
        return None if row is None else msgspec.msgpack.decode(row["payload"], type=IncomingDocument)

    def mark(
        self, transaction: Transaction, items: Sequence[JobItem], status: Literal["queued", "in_progress"]
    ) -> None:
        """Mark the jobs of a group that have not ended."""
        update = "UPDATE jobs SET status = ?, updated_at = ? WHERE id = ? AND status IN ('queued', 'in_progress')"
        now = self._clock()
        transaction.executemany(update, [(status, now, job_id) for job_id in {item.job_id for item in items}])

    def still_queued(self, transaction: Transaction, items: Sequence[JobItem]) -> set[int]:
        """Return the ``seq`` of those items that are still in the queue."""
        marks = ",".join("?" * len(items))
        sql = f"SELECT seq FROM job_items WHERE seq IN ({marks})"  # noqa: S608  # nosec B608  # only placeholders
        return {row["seq"] for row in transaction.execute(sql, [item.seq for item in items])}

    def queued(self, transaction: Transaction) -> int:
        """Return the number of queued items over all jobs."""
        return int(transaction.execute("SELECT count(*) FROM job_items").fetchone()[0])

    def finish(self, transaction: Transaction, results: Sequence[ItemResult]) -> None:
        """Remove items from the queue, count their outcomes, and end jobs that have no items left."""
        transaction.executemany("DELETE FROM job_items WHERE seq = ?", [(result.item.seq,) for result in results])
        by_job: dict[str, list[ItemResult]] = defaultdict(list)
        for result in results:
            by_job[result.item.job_id].append(result)
        for job_id, part in by_job.items():
            counts = Counter(result.outcome for result in part)
            errors = [result.error for result in part if result.error]
            self._count(transaction, job_id, counts, errors)

    def fail_rest(self, transaction: Transaction, job_id: str, code: str, message: str) -> int:
        """Fail all queued items of a job with one error. Return how many there were."""
        rows = transaction.execute(
            "DELETE FROM job_items WHERE job = ? RETURNING document_id, line", (job_id,)
        ).fetchall()
        errors = [JobError(code, message, row["document_id"], row["line"]) for row in rows[:ERRORS_KEPT]]
        self._count(transaction, job_id, Counter({"failed": len(rows)}), errors)
        return len(rows)

    def cancel(self, transaction: Transaction, collection: int, document_id: str) -> bool:
        """Remove a deleted document's items from the queue. Return whether there were any.

        They count as stored: they would have been stored first and then deleted.
        """
        rows = transaction.execute(
            "DELETE FROM job_items WHERE collection = ? AND document_id = ? RETURNING job", (collection, document_id)
        ).fetchall()
        for job_id, count in Counter(row["job"] for row in rows).items():
            self._count(transaction, job_id, Counter({"stored": count}), [])
        return bool(rows)

    def purge(self, transaction: Transaction, older_than_s: float) -> None:
        """Delete jobs that ended ``older_than_s`` ago with their keys, and key claims that are twice as old."""
        ended = "DELETE FROM jobs WHERE status IN ('completed', 'failed') AND updated_at < ?"
        transaction.execute(ended, (self._clock() - older_than_s,))
        # A claim predates its jobs, and the retention of a job starts at its end.
        transaction.execute("DELETE FROM claimed_keys WHERE since < ?", (self._clock() - 2 * older_than_s,))

    def _count(self, transaction: Transaction, job_id: str, counts: Counter[Outcome], errors: list[JobError]) -> None:
        row = transaction.execute("SELECT * FROM jobs WHERE id = ?", (job_id,)).fetchone()
        stored, unchanged = row["stored"] + counts["stored"], row["unchanged"] + counts["unchanged"]
        status = row["status"]
        if transaction.execute("SELECT 1 FROM job_items WHERE job = ? LIMIT 1", (job_id,)).fetchone() is None:
            status = "completed" if stored + unchanged else "failed"
        kept = [*msgspec.json.decode(row["errors"], type=list[JobError]), *errors][:ERRORS_KEPT]
        transaction.execute(
            """UPDATE jobs SET status = ?, stored = ?, unchanged = ?, failed_documents = failed_documents + ?,
                               errors = ?, updated_at = ? WHERE id = ?""",
            (
                *(status, stored, unchanged, counts["failed"]),
                *(msgspec.json.encode(kept).decode(), self._clock(), job_id),
            ),
        )


def _check_hash(row: sqlite3.Row, body_hash: str) -> None:
    if row["body_hash"] != body_hash:
        raise IdempotencyMismatch("this Idempotency-Key was used with a different body", param="Idempotency-Key")


def _job(row: sqlite3.Row) -> IngestJob:
    fields = {**row, "job_id": row["id"], "errors": msgspec.json.decode(row["errors"])}
    return msgspec.convert(fields, IngestJob)
