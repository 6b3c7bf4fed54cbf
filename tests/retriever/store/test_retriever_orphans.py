"""Contents without a document are recorded in the commit that orphans them, until they are forgotten."""

import itertools
import sqlite3
from pathlib import Path

import numpy as np
import pytest
from retriever_cases import SMALL, TENANT, put, put_lines, running, search, upload

from protocol.errors import ConfigError, UnknownCollection, UnknownDocument
from protocol.retrieval import Lines
from retriever.store.database import Database
from retriever.store.documents import Documents
from retriever.store.incoming import ChunkText, IncomingDocument, PreparedChunk
from retriever.store.orphans import Orphans
from retriever.store.schema import VERSION

VECTOR = np.zeros(4, np.float32)
VERSION_8 = Path(__file__).with_name("version_8.sql")


async def contents(retriever, document_id: str, collection: str = "default") -> set[str]:
    return {chunk.content_hash for chunk in (await retriever.chunks(TENANT, collection, document_id)).chunks}


async def orphans(retriever, older_than_s: float = 0.0, limit: int = 100) -> set[str]:
    return {orphan.content_hash for orphan in await retriever.orphans(older_than_s, limit)}


async def test_chunks_of_a_document_are_in_order(tmp_path):
    async with running(tmp_path, **SMALL) as retriever:
        await put(retriever, "a", " ".join(f"word{number}" for number in range(60)))
        chunks = (await retriever.chunks(TENANT, "default", "a")).chunks
        assert [chunk.index for chunk in chunks] == list(range(len(chunks)))
        assert len(chunks) > 2
        assert {chunk.document_id for chunk in chunks} == {"a"}
        with pytest.raises(UnknownDocument):
            await retriever.chunks(TENANT, "default", "b")
        with pytest.raises(UnknownCollection):
            await retriever.chunks(TENANT, "nowhere", "a")


async def test_contents_of_a_deleted_document_are_orphans_until_forgotten(tmp_path):
    async with running(tmp_path) as retriever:
        await put(retriever, "a", "elephant")
        gone = await contents(retriever, "a")
        assert await orphans(retriever) == set()
        await retriever.delete_document(TENANT, "default", "a")
    async with running(tmp_path) as retriever:
        assert await orphans(retriever) == gone
        assert await orphans(retriever, older_than_s=3600) == set()
        noted = await retriever.orphans_of(TENANT, "default", "a")
        assert [(orphan.tenant, {orphan.content_hash}) for orphan in noted] == [(TENANT, gone)]
        assert await retriever.orphans_of(TENANT, "default", "b") == []
        for _ in range(2):
            await retriever.forget_orphans(noted)
            assert await orphans(retriever) == set()


async def test_old_contents_of_a_replaced_document_are_orphans(tmp_path):
    async with running(tmp_path, **SMALL) as retriever:
        same = " ".join(["same"] * 16)
        await put(retriever, "a", f"{same} {' '.join(['old'] * 16)}")
        before = await contents(retriever, "a")
        await put(retriever, "a", f"{same} {' '.join(['new'] * 16)}")
        after = await contents(retriever, "a")
        assert before & after
        assert await orphans(retriever) == before - after
        assert {o.content_hash for o in await retriever.orphans_of(TENANT, "default", "a")} == before - after


async def test_content_of_another_document_of_the_tenant_is_no_orphan(tmp_path):
    async with running(tmp_path) as retriever:
        await put(retriever, "a", "elephant")
        await put(retriever, "b", "elephant", collection="zoo")
        shared = await contents(retriever, "a")
        await retriever.delete_document(TENANT, "default", "a")
        assert await orphans(retriever) == set()
        await retriever.delete_document(TENANT, "zoo", "b")
        assert await orphans(retriever) == shared


async def test_content_of_another_tenant_does_not_prevent_an_orphan(tmp_path):
    async with running(tmp_path) as retriever:
        await put(retriever, "a", "elephant")
        job = await retriever.put_document("other", "default", upload("a", "elephant"))
        while not job.ended:
            job = await retriever.get_job("other", job.job_id)
        mine = await contents(retriever, "a")
        await retriever.delete_document(TENANT, "default", "a")
        assert [(o.tenant, {o.content_hash}) for o in await retriever.orphans(0, 9)] == [(TENANT, mine)]


async def test_content_that_returns_is_no_orphan(tmp_path):
    async with running(tmp_path) as retriever:
        await put_lines(retriever, [{"id": "a", "text": "elephant"}, {"id": "b", "text": "giraffe"}])
        await retriever.delete_document(TENANT, "default", "a")
        (first,) = await retriever.orphans(0, 9)
        await put(retriever, "c", "elephant")
        assert await orphans(retriever) == set()
        await retriever.delete_document(TENANT, "default", "c")
        (again,) = await retriever.orphans(0, 9)
        assert again.content_hash == first.content_hash
        await retriever.forget_orphans([first])
        assert await retriever.orphans(0, 9) == [again]


async def test_oldest_orphans_come_first_up_to_the_limit(tmp_path):
    async with running(tmp_path) as retriever:
        for animal in ("elephant", "giraffe", "zebra"):
            await put(retriever, animal, animal)
            await retriever.delete_document(TENANT, "default", animal)
        numbers = [orphan.number for orphan in await retriever.orphans(0, 2)]
        assert numbers == sorted(numbers)
        assert numbers == [orphan.number for orphan in await retriever.orphans(0, 9)][:2]


@pytest.mark.parametrize("version", [1, 7, VERSION + 1])
def test_a_store_of_an_unknown_version_is_refused(tmp_path, version):
    path = tmp_path / "store.sqlite3"
    other = sqlite3.connect(path)
    other.executescript(f"PRAGMA user_version = {version}")
    other.close()
    with pytest.raises(ConfigError):
        Database(path)


def columns(path: Path) -> dict[str, set[tuple]]:
    """Name, type, default and key of the columns of each table, and the indexes."""
    with sqlite3.connect(path) as store:
        tables = store.execute("SELECT name, type FROM sqlite_master WHERE name NOT LIKE 'sqlite_%'").fetchall()
        return {name: {row[1:] for row in store.execute(f"PRAGMA table_info({name})")} for name, _ in tables}


def test_a_store_of_an_older_version_is_upgraded_and_keeps_its_rows(tmp_path):
    path = tmp_path / "old.sqlite3"
    old = sqlite3.connect(path)
    old.executescript(VERSION_8.read_text())
    old.executescript(
        """
        PRAGMA user_version = 8;
        INSERT INTO collections VALUES (7, 't', 'c', 0, NULL);
        INSERT INTO jobs VALUES ('j', 'tenant', 'c', 'queued', 1, 0, 0, 0, '[]', 0, 0);
        INSERT INTO job_items VALUES (3, 'j', 7, 'd', NULL, 1, x'00');
        INSERT INTO orphans VALUES (5, 't', 'hash', 'c', 'd', 1.5);
        """
    )
    old.close()
    Database(path).close()
    Database(tmp_path / "new.sqlite3").close()
    with sqlite3.connect(path) as store:
        assert store.execute("SELECT seq, tenant FROM job_items").fetchall() == [(3, "tenant")]
        assert store.execute("SELECT id, content_hash, attempts FROM orphans").fetchall() == [(5, "hash", 0)]
        assert store.execute("SELECT count(*) FROM store").fetchone() == (1,)
    upgraded, new = columns(path), columns(tmp_path / "new.sqlite3")
    assert upgraded.keys() == new.keys()
    for table, described in new.items():
        assert upgraded[table] == described, table


async def test_the_age_of_an_orphan_counts_from_when_it_was_first_seen_and_no_set_clock_changes_it(tmp_path):
    now, clock = 0.0, itertools.count(1e9, -1e6)
    orphans = Orphans(lambda: now)
    documents = Documents(orphans, lambda: float(next(clock)))
    database = Database(tmp_path / "store.sqlite3")
    listed = []
    for number, when in enumerate((0.0, 5.0, 12.0, 16.0, 99.0), start=1):
        now = when
        with database.write() as transaction:
            collection = documents.ensure_collection(transaction, TENANT, "default")
            text = IncomingDocument("a", "text", "a", None, {})
            chunk = PreparedChunk(number, ChunkText("text", f"content {number}", 0, 4), VECTOR, Lines(1, 1))
            documents.put(transaction, collection, text, [chunk], "")
        with database.read() as transaction:
            listed.append([orphan.content_hash[-1] for orphan in orphans.older_than(transaction, 10.0, 9)])
    assert listed == [[], [], [], ["1"], ["1", "2", "3"]]
    with database.read() as transaction:
        assert [orphan.gone_at.number for orphan in orphans.older_than(transaction, 0.0, 2)] == [1, 2]
        assert Orphans().older_than(transaction, 10.0, 9) == [], "another process has just seen them"
    database.close()


async def test_revisions_rise_with_each_content_that_goes_survive_a_restart_and_name_their_store(tmp_path):
    seen = []
    for _ in range(2):
        async with running(tmp_path / "one") as retriever:
            for text in ("first", "second"):
                await put(retriever, "a", text)
                seen += [(await retriever.chunks(TENANT, "default", "a")).revision]
                seen += (await search(retriever, text)).revisions
            await retriever.delete_document(TENANT, "default", "a")
            noted = await retriever.orphans_of(TENANT, "default", "a")
            assert {orphan.gone_at.number for orphan in noted} >= {seen[-1].number + 1}
            await retriever.forget_orphans(noted)
    assert [revision.number for revision in seen] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert len({revision.store for revision in seen}) == 1
    async with running(tmp_path / "other") as retriever:
        await put(retriever, "a", "first")
        (other,) = (await search(retriever, "first")).revisions
    assert other.store != seen[0].store


async def test_attempts_survive_a_restart_and_what_is_given_up_is_listed_for_its_document_only(tmp_path):
    async with running(tmp_path) as retriever:
        await put(retriever, "a", "elephant")
        await retriever.delete_document(TENANT, "default", "a")
        await retriever.attempt_orphans(await retriever.orphans(0.0, 9))
    async with running(tmp_path) as retriever:
        (orphan,) = await retriever.orphans(0.0, 9)
        assert orphan.attempts == 1
        for _ in range(2):
            await retriever.give_up_orphans([orphan], "the disk is read-only")
        assert await retriever.orphans(0.0, 9) == []
        assert await retriever.orphans_of(TENANT, "default", "a") == [orphan]
        await put(retriever, "a", "elephant")
        await retriever.delete_document(TENANT, "default", "a")
        (again,) = await retriever.orphans(0.0, 9)
        assert (again.number, again.attempts) == (orphan.number + 1, 0)
