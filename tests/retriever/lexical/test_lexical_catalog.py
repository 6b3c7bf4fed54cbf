import errno
import shutil

import pytest
from retriever_cases import TENANT, ids, put, running, search

from protocol.errors import InvalidRequest
from protocol.retrieval import SearchKind
from retriever.lexical.lexical_index import LexicalIndex

SPARSE = {"search": SearchKind.SPARSE}


def folder_of(data_dir):
    (folder,) = (data_dir / "lexical").glob("words-*/*")
    return folder


async def test_the_index_is_corrected_by_the_store_at_the_start(tmp_path):
    async with running(tmp_path, **SPARSE) as retriever:
        await put(retriever, "a", "apples")
        await put(retriever, "b", "bananas")
    index = LexicalIndex(folder_of(tmp_path))
    kept, lost = index.ids().tolist()
    # As after crashes between the commit of the index and that of the store, in either order.
    index.change([(lost + 10, "cherries")], [lost])
    async with running(tmp_path, **SPARSE) as retriever:
        assert ids(await search(retriever, "bananas")) == ["b"]
        assert ids(await search(retriever, "cherries")) == []
    assert LexicalIndex(folder_of(tmp_path)).ids().tolist() == [kept, lost]


async def test_a_broken_or_missing_index_is_built_again(tmp_path):
    async with running(tmp_path, **SPARSE) as retriever:
        await put(retriever, "a", "apples")
    (folder_of(tmp_path) / "meta.json").write_text("{")
    async with running(tmp_path, **SPARSE) as retriever:
        assert ids(await search(retriever, "apples")) == ["a"]
    shutil.rmtree(tmp_path / "lexical")
    async with running(tmp_path, **SPARSE) as retriever:
        assert ids(await search(retriever, "apples")) == ["a"]


async def test_indexes_without_a_use_are_deleted(tmp_path):
    async with running(tmp_path, **SPARSE) as retriever:
        await put(retriever, "a", "apples")
        await put(retriever, "b", "bananas", collection="fruits")
        await retriever.delete_document(TENANT, "fruits", "b")
    (tmp_path / "lexical" / "words-0" / "7").mkdir(parents=True)
    async with running(tmp_path, **SPARSE):
        pass
    assert [folder.name for folder in (tmp_path / "lexical").iterdir()] != ["words-0"]
    assert folder_of(tmp_path).name == "1"


async def test_deleted_and_replaced_documents_leave_the_index(tmp_path):
    async with running(tmp_path, **SPARSE) as retriever:
        await put(retriever, "a", "apples")
        await put(retriever, "b", "apples too")
        await put(retriever, "a", "cherries")
        assert ids(await search(retriever, "apples")) == ["b"]
        await retriever.delete_document(TENANT, "default", "b")
        assert ids(await search(retriever, "apples")) == []
        assert ids(await search(retriever, "cherries")) == ["a"]


async def test_a_removal_that_the_disk_refuses_is_repeated(tmp_path, monkeypatch):
    async with running(tmp_path, **SPARSE) as retriever:
        await put(retriever, "a", "apples")
        await put(retriever, "b", "bananas")
        change, failures = LexicalIndex.change, iter([True, False])

        def change_or_fail(index, added=(), removed=()):
            if removed and next(failures, False):
                raise OSError(errno.EIO, "the disk fails once")
            change(index, added, removed)

        monkeypatch.setattr(LexicalIndex, "change", change_or_fail)
        await retriever.delete_document(TENANT, "default", "a")
        await put(retriever, "c", "cherries")
        assert next(failures, None) is None
    assert len(LexicalIndex(folder_of(tmp_path)).ids()) == 2


async def test_a_collection_needs_a_name_that_can_be_shown(tmp_path):
    async with running(tmp_path) as retriever:
        with pytest.raises(InvalidRequest):
            await retriever.put_collection(TENANT, "a\x00b", None)
