import asyncio
import threading

import numpy as np
import pytest
from retriever_cases import TENANT, ended, ids, lines, put, put_lines, running, search, tales, upload

from protocol.documents import DocumentUpload
from protocol.errors import (
    EmptyDocument,
    IdempotencyMismatch,
    InvalidEncoding,
    InvalidRequest,
    Overloaded,
    Unavailable,
    UnknownDocument,
    UnsupportedMediaType,
)
from retriever.embedding.hashing import HashingEmbedder
from retriever.settings import IngestSettings


class ControlledEmbedder(HashingEmbedder):
    """An embedder that waits for ``go``. It fails ``down`` times, and for texts that contain a word of ``poison``."""

    def __init__(self):
        super().__init__()
        self.go = threading.Event()
        self.go.set()
        self.waiting = threading.Event()
        self.down = 0
        self.poison: dict[str, Exception] = {}
        self.batches: list[list[str]] = []

    def embed_documents(self, texts):
        self.batches.append(list(texts))
        self.waiting.set()
        assert self.go.wait(30)
        if self.down:
            self.down -= 1
            raise Unavailable("the endpoint is down")
        for text in texts:
            for word, error in self.poison.items():
                if word in text:
                    raise error
        return super().embed_documents(texts)

    def hold(self):
        self.go.clear()
        self.waiting.clear()

    def embed_query(self, text):
        return HashingEmbedder().embed_query(text)


@pytest.fixture
def embedder():
    embedder = ControlledEmbedder()
    yield embedder
    embedder.go.set()


async def held(embedder):
    async with asyncio.timeout(20):
        while not embedder.waiting.is_set():
            await asyncio.sleep(0.002)


async def test_document_is_returned_unchanged(tmp_path):
    async with running(tmp_path) as retriever:
        attributes = {"lang": "en", "year": 2020.0, "open": True}
        job = await put(retriever, "a/b c", "# Head\nbody", media_type="text/markdown", attributes=attributes)
        assert (job.status, job.total, job.stored, job.unchanged, job.failed_documents) == ("completed", 1, 1, 0, 0)
        stored = await retriever.get_document(TENANT, "default", "a/b c")
        assert stored.text == "# Head\nbody"
        assert (stored.info.title, stored.info.filename, stored.info.attributes) == ("Head", "a/b c", attributes)
        assert (stored.info.bytes, stored.info.chunks) == (len(stored.text.encode()), 1)
        (chunk,) = (await search(retriever, "body")).docs
        assert chunk.attributes == attributes


async def test_given_title_overrides_the_extracted_one(tmp_path):
    async with running(tmp_path) as retriever:
        await put(retriever, "a", "# Found\nbody", media_type="text/markdown", title="Given", filename="f.md")
        info = (await retriever.get_document(TENANT, "default", "a")).info
        assert (info.title, info.filename) == ("Given", "f.md")


@pytest.mark.parametrize(("document_id", "fields"), [("a.md", {}), ("a.pdf", {"filename": "b.md"})])
async def test_untyped_upload_is_read_by_its_file_name_or_id(tmp_path, document_id, fields):
    async with running(tmp_path) as retriever:
        await put(retriever, document_id, "# Found\nbody", media_type="application/octet-stream", **fields)
        assert (await retriever.get_document(TENANT, "default", document_id)).info.title == "Found"


@pytest.mark.parametrize(
    ("change", "outcome"),
    [
        ({}, "unchanged"),
        ({"text": "other"}, "stored"),
        ({"title": "other"}, "stored"),
        ({"filename": "other"}, "stored"),
        ({"attributes": {"k": 2.0}}, "stored"),
    ],
)
async def test_changed_fields_make_an_upload_a_change(tmp_path, change, outcome):
    first = {"text": "text", "title": "title", "filename": "file", "attributes": {"k": 1.0}}
    async with running(tmp_path) as retriever:
        await put(retriever, "a", **first)
        before = (await search(retriever, "text other title")).docs
        job = await put(retriever, "a", **{**first, **change})
        assert {"stored": job.stored, "unchanged": job.unchanged}[outcome] == 1
        after = (await search(retriever, "text other title")).docs
        assert len(after) == 1
        assert (after == before) == (outcome == "unchanged")
        assert (await retriever.list_collections(TENANT))[0].chunks == 1


@pytest.mark.parametrize(
    ("bad", "error"),
    [
        (upload("a", " \n"), EmptyDocument),
        (upload("a", "x", media_type="image/png"), UnsupportedMediaType),
        (upload("", "x"), InvalidRequest),
        (upload("a\x00b", "x"), InvalidRequest),
        (upload("\ud800", "x"), InvalidRequest),
        (upload("a" * 2000, "x"), InvalidRequest),
        (upload("a", "x", attributes={"k": float("nan")}), InvalidRequest),
        (upload("a", "x", attributes={"k": "\ud800"}), InvalidRequest),
        (upload("a", "x", attributes={"k": [1]}), InvalidRequest),
    ],
)
async def test_bad_upload_leaves_nothing(tmp_path, bad, error):
    async with running(tmp_path) as retriever:
        with pytest.raises(error):
            await retriever.put_document(TENANT, "zoo", bad)
        assert [info.name for info in await retriever.list_collections(TENANT)] == ["default"]


async def test_bad_encoding_is_refused_at_once(tmp_path):
    async with running(tmp_path) as retriever:
        with pytest.raises(InvalidEncoding):
            await retriever.put_document(TENANT, "default", DocumentUpload("a", b"\xff\xff", "text/plain"))


async def test_batch_skips_and_reports_invalid_lines(tmp_path):
    body = b"\n".join(
        [
            b'{"id": "a", "text": "one"}',
            b"",
            b"not json",
            b'{"id": "b", "text": "two", "attributes": {"n": 1, "s": "x", "t": true}}\r',
            b'{"id": "c"}',
            b'{"id": "d", "text": " "}',
            b'{"id": "e", "text": "\xff"}',
            b'{"id": "f", "text": "six", "attributes": {"n": [1]}}',
            b'{"id": "", "text": "seven"}',
        ]
    )
    async with running(tmp_path) as retriever:
        job = await ended(retriever, await retriever.put_batch(TENANT, "default", body))
        assert (job.status, job.total, job.stored, job.failed_documents) == ("completed", 8, 2, 6)
        reported = [(error.line, error.code) for error in job.errors]
        assert reported == [
            (3, "invalid_request"),
            (5, "invalid_request"),
            (6, "empty_document"),
            (7, "invalid_encoding"),
            (8, "invalid_request"),
            (9, "invalid_request"),
        ]
        assert job.last_error == job.errors[-1]
        assert (await retriever.get_document(TENANT, "default", "b")).info.attributes == {"n": 1.0, "s": "x", "t": True}


async def test_batch_of_invalid_lines_fails_and_lists_a_hundred(tmp_path):
    async with running(tmp_path) as retriever:
        job = await retriever.put_batch(TENANT, "default", b"broken\n" * 250)
        assert (job.status, job.total, job.failed_documents, len(job.errors)) == ("failed", 250, 250, 100)
        for body in (b"", b"\n \n"):
            with pytest.raises(EmptyDocument):
                await retriever.put_batch(TENANT, "default", body)


async def test_last_of_several_uploads_wins(tmp_path, embedder):
    async with running(tmp_path, embedder) as retriever:
        embedder.hold()
        blocker = await retriever.put_document(TENANT, "default", upload("z", "blocker"))
        await held(embedder)
        jobs = [await retriever.put_document(TENANT, "default", upload("a", f"text {n}")) for n in range(5)]
        embedder.go.set()
        done = [await ended(retriever, job) for job in [blocker, *jobs]]
        assert [(job.status, job.stored) for job in done] == [("completed", 1)] * 6
        assert (await retriever.get_document(TENANT, "default", "a")).text == "text 4"
        assert (await retriever.list_collections(TENANT))[0].chunks == 2


async def test_concurrent_uploads_store_one_whole_document(tmp_path):
    async with running(tmp_path) as retriever:
        jobs = await asyncio.gather(
            *(retriever.put_document(TENANT, "default", upload("a", f"text {n}")) for n in range(20))
        )
        for job in jobs:
            assert (await ended(retriever, job)).status == "completed"
        text = (await retriever.get_document(TENANT, "default", "a")).text
        (chunk,) = (await search(retriever, "text")).docs
        assert chunk.text == text


@pytest.mark.parametrize(
    "before", ["[", '{"id": "a", "text": "b", "x": [', '{"id": "a", "text": "b", "attributes": {"a": [']
)
async def test_deeply_nested_line_is_one_invalid_line(tmp_path, before):
    async with running(tmp_path) as retriever:
        body = (before + "[" * 200_000).encode() + b"\n" + lines([{"id": "whole", "text": "text"}])
        job = await ended(retriever, await retriever.put_batch(TENANT, "default", body))
        assert [(error.code, error.line) for error in job.errors] == [("invalid_request", 1)]
        assert job.stored == 1


async def test_batch_with_too_many_lines_is_refused(tmp_path):
    async with running(tmp_path) as retriever:
        with pytest.raises(InvalidRequest, match="100,000 lines"):
            await retriever.put_batch(TENANT, "default", b"\n" * 100_001)


async def test_last_line_of_an_id_in_a_batch_wins(tmp_path):
    async with running(tmp_path) as retriever:
        job = await put_lines(
            retriever, [{"id": "a", "text": "first"}, {"id": "b", "text": "x"}, {"id": "a", "text": "last"}]
        )
        assert (job.stored, job.status) == (3, "completed")
        assert (await retriever.get_document(TENANT, "default", "a")).text == "last"


async def test_progress_is_visible_and_searches_continue(tmp_path, embedder):
    async with running(tmp_path, embedder, group_documents=2) as retriever:
        await put(retriever, "ready", "elephant")
        embedder.hold()
        job = await retriever.put_batch(TENANT, "default", lines([{"id": f"{n}", "text": f"t{n}"} for n in range(6)]))
        assert job.status == "queued"
        await held(embedder)
        assert (await retriever.get_job(TENANT, job.job_id)).status == "in_progress"
        assert ids(await search(retriever, "elephant")) == ["ready"]
        embedder.go.set()
        job = await ended(retriever, job)
        assert job.stored == 6
        assert all(len(batch) <= 2 for batch in embedder.batches)


async def test_deletion_cancels_queued_uploads(tmp_path, embedder):
    async with running(tmp_path, embedder) as retriever:
        embedder.hold()
        first = await retriever.put_document(TENANT, "default", upload("a", "in the worker's hands"))
        await held(embedder)
        second = await retriever.put_document(TENANT, "default", upload("a", "still queued"))
        await retriever.delete_document(TENANT, "default", "a")
        embedder.go.set()
        for job in (first, second):
            assert (await ended(retriever, job)).status == "completed"
        await put(retriever, "b", "another")
        with pytest.raises(UnknownDocument):
            await retriever.get_document(TENANT, "default", "a")
        assert ids(await search(retriever, "worker queued")) == ["b"]


async def test_deleted_document_can_be_uploaded_again(tmp_path):
    async with running(tmp_path) as retriever:
        await put_lines(retriever, [{"id": "a", "text": "elephant"}, {"id": "b", "text": "giraffe"}])
        await retriever.delete_document(TENANT, "default", "a")
        assert ids(await search(retriever, "elephant")) == ["b"]
        with pytest.raises(UnknownDocument):
            await retriever.delete_document(TENANT, "default", "a")
        await put(retriever, "a", "elephant")
        assert ids(await search(retriever, "elephant"))[0] == "a"


async def test_ingestion_resumes_when_the_embedder_is_back(tmp_path, embedder):
    async with running(tmp_path, embedder) as retriever:
        embedder.down = 3
        job = await put(retriever, "a", "text")
        assert (job.status, job.stored, job.errors) == ("completed", 1, ())
        assert embedder.down == 0


async def test_job_is_queued_while_the_embedder_is_down(tmp_path, embedder):
    async with running(tmp_path, embedder, retry_first_s=30) as retriever:
        embedder.down = 1
        job = await retriever.put_document(TENANT, "default", upload("a", "text"))
        async with asyncio.timeout(20):
            while embedder.down or job.status != "queued":
                await asyncio.sleep(0.002)
                job = await retriever.get_job(TENANT, job.job_id)
    async with running(tmp_path) as retriever:
        assert (await ended(retriever, job)).stored == 1


@pytest.mark.parametrize(
    ("error", "code"), [(InvalidRequest("refused"), "invalid_request"), (ZeroDivisionError("secret"), "internal_error")]
)
async def test_document_that_cannot_be_embedded_is_skipped(tmp_path, embedder, error, code):
    async with running(tmp_path, embedder) as retriever:
        embedder.poison = {"poison": error}
        documents = [{"id": f"d{n}", "text": "poison" if n == 3 else f"text {n}"} for n in range(6)]
        job = await put_lines(retriever, documents)
        assert (job.status, job.stored, job.failed_documents) == ("completed", 5, 1)
        (reported,) = job.errors
        assert (reported.code, reported.document_id, reported.line) == (code, "d3", 4)
        assert "secret" not in reported.message


async def test_job_fails_if_no_document_is_stored(tmp_path, embedder):
    async with running(tmp_path, embedder) as retriever:
        await put(retriever, "a", "old")
        embedder.poison = {"poison": InvalidRequest("refused")}
        job = await put(retriever, "a", "poison")
        assert (job.status, job.failed_documents) == ("failed", 1)
        assert (await retriever.get_document(TENANT, "default", "a")).text == "old"


async def test_idempotency_key_returns_the_same_job(tmp_path):
    async with running(tmp_path) as retriever:
        first = await retriever.put_document(TENANT, "default", upload("a", "text"), "key")
        await ended(retriever, first)
        again = await retriever.put_document(TENANT, "default", upload("a", "text"), "key")
        assert again.job_id == first.job_id
        for other in (upload("a", "changed"), upload("b", "text"), upload("a", "text", title="t")):
            with pytest.raises(IdempotencyMismatch):
                await retriever.put_document(TENANT, "default", other, "key")
        with pytest.raises(IdempotencyMismatch):
            await retriever.put_batch(TENANT, "default", lines([{"id": "a", "text": "text"}]), "key")
        theirs = await retriever.put_document("rival", "default", upload("a", "text"), "key")
        assert theirs.job_id != first.job_id


async def test_idempotency_key_holds_for_concurrent_requests(tmp_path):
    async with running(tmp_path) as retriever:
        jobs = await asyncio.gather(
            *(retriever.put_document(TENANT, "default", upload("a", "text"), "key") for _ in range(10))
        )
        assert len({job.job_id for job in jobs}) == 1


async def test_small_documents_are_ingested_in_groups(tmp_path, embedder):
    async with running(tmp_path, embedder) as retriever:
        job = await put_lines(retriever, [{"id": f"d{n}", "text": f"text {n}"} for n in range(1000)])
        assert job.stored == 1000
        assert len(embedder.batches) == 2


class SometimesBroken(HashingEmbedder):
    """Returns NaN vectors for texts about poison."""

    def embed_documents(self, texts):
        vectors = super().embed_documents(texts)
        for row, text in zip(vectors, texts, strict=True):
            if "poison" in text:
                row[:] = np.nan
        return vectors


async def test_invalid_vectors_fail_only_their_document(tmp_path):
    async with running(tmp_path, SometimesBroken()) as retriever:
        job = await put_lines(retriever, [{"id": word, "text": word} for word in ("lighthouse", "poison", "harbour")])
        assert [(error.document_id, error.code) for error in job.errors] == [("poison", "invalid_request")]
        assert ids(await search(retriever, "harbour", top_k=3))[0] == "harbour"
        assert len((await search(retriever, "harbour", top_k=3)).docs) == 2
        with pytest.raises(InvalidRequest, match="not finite"):
            await search(retriever, "poison")


async def test_uploads_are_refused_while_the_queue_is_full(tmp_path, embedder):
    embedder.hold()
    async with running(tmp_path, embedder, ingest=IngestSettings(max_queued_documents=3)) as retriever:
        batch = lines([{"id": f"b{n}", "text": f"text {n}"} for n in range(10)])
        first = await retriever.put_batch(TENANT, "c", batch, "key")
        with pytest.raises(Overloaded):
            await retriever.put_document(TENANT, "c", upload("d", "too much"))
        assert (await retriever.put_batch(TENANT, "c", batch, "key")).job_id == first.job_id, "this one is in already"
        embedder.go.set()
        await ended(retriever, first)
        await retriever.put_document(TENANT, "c", upload("d", "there is room again"))


async def test_a_tenant_with_few_documents_does_not_wait_for_one_with_many(tmp_path):
    async with running(tmp_path, group_documents=1) as retriever:
        many = await retriever.put_batch("busy", "default", lines(tales(0, 300)))
        few = await put_lines(retriever, tales(0, 3))
        assert few.stored == 3
        busy = await retriever.get_job("busy", many.job_id)
        assert not busy.ended
        assert busy.stored < 150
