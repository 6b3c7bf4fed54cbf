"""Long texts of any kind are cut, embedded and stored in bounded windows, parts and transactions."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from retriever_cases import TENANT, ended, ids, put, running, search, upload
from test_retriever_chunker import TEXTS, TOKENIZERS

from protocol.retrieval import SearchKind
from retriever.ingestion.chunker import Chunker
from retriever.ingestion.cut_places import LONGEST_GAP
from retriever.settings import ChunkSettings
from retriever.store.documents import Documents

HERE = Path(__file__).parents[1]
MIB = 1024 * 1024
WORST = {
    "marks": "!",
    "one word": "a",
    "line feeds between words": "\n" * 1000 + "a",
    "zero width": "a" + "\u200b" * 999,
    "combining marks": "e" + "\u0301" * 999,
    "emoji": "\U0001f469\u200d\U0001f469\u200d\U0001f467 ",
    "short words": "a b ",
    "headings": "\n\n# a",
    "comments": "#\n",
    "fences": "```\n\n",
}

MEASURED = ["marks", "zero width"]


@settings(deadline=None)
@given(
    text=st.lists(TEXTS, max_size=4).map("\n\n# A heading\n\n".join),
    size=st.integers(8, 60),
    window=st.integers(16, 400),
    data=st.data(),
    kind=st.sampled_from(["words", "bytes"]),
)
def test_windows_of_any_size_give_the_chunks_of_one_pass(text, size, window, data, kind):
    sizes = ChunkSettings(size=size, overlap=data.draw(st.integers(0, size // 2)))
    title = data.draw(st.none() | st.just("A title"))
    whole = Chunker(TOKENIZERS[kind], 60, sizes, window=len(text) + 1)
    assert Chunker(TOKENIZERS[kind], 60, sizes, window).chunks(text.strip(), title) == whole.chunks(text.strip(), title)


@pytest.mark.parametrize("gap", ["\n", " ", "\u200b"])
def test_what_has_no_token_does_not_make_a_chunk_longer(gap):
    text = f"first{gap * 100_000}last"
    chunks = Chunker(TOKENIZERS["words"], 510, ChunkSettings(size=16, overlap=0)).chunks(text)
    assert chunks[0].text.startswith("first")
    assert chunks[-1].text.endswith("last")
    assert max(len(chunk.text) for chunk in chunks) <= 16 * LONGEST_GAP


@pytest.mark.parametrize("kind", WORST)
def test_the_time_to_cut_is_linear(kind):
    def seconds(characters: int) -> float:
        text = (WORST[kind] * (characters // len(WORST[kind]) + 1))[:characters]
        began = time.process_time()
        for _ in Chunker(TOKENIZERS["words"], 510, ChunkSettings()).cut(text.strip()):
            pass
        return time.process_time() - began

    assert seconds(400_000) < 8 * seconds(100_000) + 0.5


@pytest.fixture(scope="module")
def grown() -> dict[str, float]:
    """MiB by which a retriever grew while it ingested 1 MiB of each text."""
    run = subprocess.run(
        [sys.executable, str(HERE / "growing_retriever.py"), json.dumps({kind: WORST[kind] for kind in MEASURED}), "1"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(run.stdout.splitlines()[-1])


@pytest.mark.prove("retriever/ingestion/", "retriever/embedding/")
@pytest.mark.parametrize("kind", MEASURED)
def test_memory_does_not_grow_with_the_tokens_of_a_document(grown, kind):
    # Tokenized at once, 1 MiB of marks takes hundreds.
    assert grown[kind] < 80


async def test_a_long_document_is_found_whole_and_short_ones_behind_it_do_not_wait(tmp_path):
    async with running(tmp_path, group_bytes=2000, chunks={"size": 16, "overlap": 0}) as retriever:
        long = await retriever.put_document(
            TENANT, "default", upload("long", " ".join(f"word{n}" for n in range(20_000)))
        )
        short = await put(retriever, "short", "elephant")
        assert short.status == "completed"
        seen = await retriever.get_job(TENANT, long.job_id)
        assert not seen.ended
        assert ids(await search(retriever, "word19999 word3", top_k=10)) == ["short"]
        assert (await ended(retriever, long)).stored == 1
        found = await search(retriever, "word19999", top_k=1, search=SearchKind.SPARSE)
        assert "word19999" in found.docs[0].text
        chunks = (await retriever.chunks(TENANT, "default", "long")).chunks
        assert [chunk.index for chunk in chunks] == list(range(len(chunks)))
        assert sum(len(chunk.text.split()) for chunk in chunks) == 20_000
        # Replacing and deleting it works as for any other.
        assert (await put(retriever, "long", "giraffe")).stored == 1
        assert sorted(ids(await search(retriever, "giraffe", top_k=10))) == ["long", "short"]


async def test_a_part_that_could_not_be_stored_is_stored_later(tmp_path, monkeypatch):
    stage, failures = Documents.stage, iter(["SELECT * FROM missing"])

    def failing(self, transaction, seq, position, part):
        stage(self, transaction, seq, position, part)
        if position and (statement := next(failures, None)):
            # It raises an OperationalError, as an error of the disk does.
            transaction.execute(statement)

    monkeypatch.setattr(Documents, "stage", failing)
    async with running(tmp_path, group_bytes=2000, chunks={"size": 16, "overlap": 0}) as retriever:
        text = " ".join(f"word{n}" for n in range(10_000))
        job = await retriever.put_document(TENANT, "default", upload("long", text))
        assert (await ended(retriever, job)).stored == 1
        assert next(failures, None) is None
        chunks = (await retriever.chunks(TENANT, "default", "long")).chunks
        assert " ".join(chunk.text for chunk in chunks) == text


async def test_uploads_of_one_document_keep_their_order(tmp_path):
    async with running(tmp_path, group_bytes=2000, chunks={"size": 16, "overlap": 0}) as retriever:
        jobs = [
            await retriever.put_document(TENANT, "default", upload("a", text))
            for text in ("first " * 5000, "second " * 5000, "third")
        ]
        for job in jobs:
            assert (await ended(retriever, job)).stored == 1
        assert (await retriever.get_document(TENANT, "default", "a")).text == "third"


async def test_deleting_a_long_document_that_is_being_ingested_leaves_nothing(tmp_path):
    async with running(tmp_path, group_bytes=2000, chunks={"size": 16, "overlap": 0}) as retriever:
        job = await retriever.put_document(TENANT, "default", upload("long", "word " * 40_000))
        await put(retriever, "short", "elephant")
        await retriever.delete_document(TENANT, "default", "long")
        assert (await ended(retriever, job)).status == "completed"
        await put(retriever, "other", "giraffe")
        assert sorted(ids(await search(retriever, "word", top_k=100))) == ["other", "short"]
        with retriever._store.database.read() as transaction:
            assert transaction.execute("SELECT count(*) FROM staged_chunks").fetchone()[0] == 0
