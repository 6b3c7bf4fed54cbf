"""Triplets in the store: with their document, and with the chunks that state them."""

import sqlite3
from pathlib import Path

import msgspec
from retriever_cases import TENANT, put, put_lines, running
from sharded_cases import running_shards

from protocol.graph import Triplet
from retriever.embedding.hashing import HashingEmbedder

BORN = Triplet("Marie Curie", "born in", "Warsaw")
MARRIED = Triplet("Marie Curie", "married", "Pierre Curie")
SMALL = {"chunks": {"size": 12, "overlap": 0}}
# Four chunks of twelve tokens lie before the last sentence.
TEXT = " ".join(["Marie Curie was born in Warsaw.", *["nothing"] * 41, "Pierre Curie married Marie Curie."])


def objects(*triplets: Triplet) -> list[dict[str, str]]:
    return [triplet._asdict() for triplet in triplets]


def columns(folder: Path, table: str) -> list[list[Triplet] | None]:
    """The triplets of all rows of a table, in order."""
    (file,) = folder.rglob("*.sqlite3")
    with sqlite3.connect(file) as store:
        rows = store.execute(f"SELECT triplets FROM {table} ORDER BY id").fetchall()
    return [None if row[0] is None else msgspec.json.decode(row[0], type=list[Triplet]) for row in rows]


def stated(folder: Path) -> list[Triplet]:
    return [triplet for found in columns(folder, "chunks") for triplet in found or ()]


async def test_triplets_are_stored_with_the_document_and_the_chunks_that_state_them(tmp_path):
    async with running(tmp_path, **SMALL) as retriever:
        await put_lines(
            retriever, [{"id": "a", "text": TEXT, "triplets": objects(MARRIED, BORN)}, {"id": "b", "text": "b"}]
        )
        assert columns(tmp_path, "documents") == [[MARRIED, BORN], None]
        first, *middle, last, other = columns(tmp_path, "chunks")
    assert (first, last, other) == ([BORN], [MARRIED], None)
    assert middle
    assert not any(middle)


async def test_a_single_upload_has_triplets_too(tmp_path):
    async with running(tmp_path) as retriever:
        job = await put(retriever, "a", TEXT, triplets=(BORN, BORN))
        assert job.stored == 1
    assert columns(tmp_path, "documents") == [[BORN]]


async def test_a_replaced_document_has_its_new_triplets_alone(tmp_path):
    async with running(tmp_path) as retriever:
        assert (await put(retriever, "a", TEXT, triplets=(BORN,))).stored == 1
        assert (await put(retriever, "a", TEXT, triplets=(BORN,))).unchanged == 1
        assert (await put(retriever, "a", TEXT, triplets=(MARRIED,))).stored == 1
        assert (columns(tmp_path, "documents"), stated(tmp_path)) == ([[MARRIED]], [MARRIED])
        assert (await put(retriever, "a", TEXT)).stored == 1
        assert (columns(tmp_path, "documents"), stated(tmp_path)) == ([None], [])


async def test_a_deleted_document_takes_its_triplets_along(tmp_path):
    async with running(tmp_path) as retriever:
        await put(retriever, "a", TEXT, triplets=(BORN,))
        await retriever.delete_document(TENANT, "default", "a")
    assert (columns(tmp_path, "documents"), columns(tmp_path, "chunks")) == ([], [])


async def test_shards_get_the_triplets_of_their_documents(tmp_path):
    names = [f"d{number}" for number in range(8)]
    async with running_shards(tmp_path, 2) as (retriever, _):
        await put_lines(retriever, [{"id": name, "text": TEXT, "triplets": objects(BORN)} for name in names[:4]])
        for name in names[4:]:
            await put(retriever, name, TEXT, triplets=(MARRIED,))
    of_each = [columns(tmp_path / str(number), "documents") for number in range(2)]
    assert all(of_each)
    assert sorted(triplet for shard in of_each for found in shard for triplet in found) == [BORN] * 4 + [MARRIED] * 4


class Other(HashingEmbedder):
    """Another embedder."""

    def __init__(self):
        super().__init__()
        self.fingerprint = "another"


async def test_chunks_that_are_cut_again_state_the_same_triplets(tmp_path):
    async with running(tmp_path) as retriever:
        await put(retriever, "a", TEXT, triplets=(BORN, MARRIED))
        assert columns(tmp_path, "chunks") == [[BORN, MARRIED]]
    async with running(tmp_path, **SMALL):
        cut = columns(tmp_path, "chunks")
        assert (len(cut), cut[0], cut[-1]) == (5, [BORN], [MARRIED])
    async with running(tmp_path, Other(), **SMALL):
        assert columns(tmp_path, "documents") == [[BORN, MARRIED]]
        assert columns(tmp_path, "chunks") == cut
