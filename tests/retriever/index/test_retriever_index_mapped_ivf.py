"""An index on disk: mapped into memory, immutable, and verified by checksums."""

import pytest
from retriever_cases import TENANT, ids, index_of, put, put_lines, running, search, tales
from varied import varied

from retriever.index.base import Trained
from retriever.index.index_files import IndexFiles
from retriever.settings import IndexSettings

MAPPED = varied(IndexSettings, ivf_threshold=32, probe_share=1.0, on_disk_bytes=1)
TRAINED = Trained(3, 1.5)


def write(folder):
    (folder / "centroids").write_bytes(b"some centroids")
    (folder / "lists").write_bytes(b"some lists" * 1000)
    return TRAINED


def test_saved_folder_is_found_and_replaces_the_older_one(tmp_path):
    files = IndexFiles(tmp_path / "indexes", "print")
    assert files.find_mapped(1) is None
    first, trained = files.save_mapped(1, write)
    assert files.find_mapped(1) == (first, trained) == (first, TRAINED)
    second, _ = files.save_mapped(1, write)
    assert files.find_mapped(1) == (second, TRAINED)
    assert files.find_mapped(11) is None
    assert IndexFiles(tmp_path / "indexes", "another print").find_mapped(1) is None
    assert list((tmp_path / "indexes").iterdir()) == [second]
    files.discard_mapped(1)
    assert not list((tmp_path / "indexes").iterdir())


@pytest.mark.parametrize("name", ["centroids", "lists", "header.json"])
@pytest.mark.parametrize("damage", [lambda b: b[:-1], lambda b: b[:-1] + b"x", lambda b: b"", None])
def test_damaged_folder_is_ignored(tmp_path, name, damage):
    files = IndexFiles(tmp_path, "print")
    folder, _ = files.save_mapped(1, write)
    path = folder / name
    if damage:
        path.write_bytes(damage(path.read_bytes()))
    else:
        path.unlink()
    assert files.find_mapped(1) is None


def test_failed_save_keeps_only_the_older_folder(tmp_path):
    files = IndexFiles(tmp_path, "print")
    folder, _ = files.save_mapped(1, write)

    def full(folder):
        write(folder)
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        files.save_mapped(1, full)
    assert files.find_mapped(1) == (folder, TRAINED)
    assert list(tmp_path.iterdir()) == [folder]


def test_sweep_deletes_remains_and_the_newest_folder_is_found(tmp_path):
    files = IndexFiles(tmp_path, "print")
    older, _ = files.save_mapped(1, write)
    (tmp_path / "half.tmp").mkdir()
    write(tmp_path / "half.tmp")
    newer = tmp_path / "1.10.mapped"
    older_again = tmp_path / "1.9.mapped"
    older.rename(older_again)
    files.save_mapped(2, write)[0].rename(newer)
    files.sweep()
    assert sorted(tmp_path.iterdir()) == sorted([newer, older_again])
    assert files.find_mapped(1) == (newer, TRAINED)


async def test_large_collection_is_mapped_and_reconciled_at_restart(tmp_path):
    async with running(tmp_path, index=MAPPED) as retriever:
        await put_lines(retriever, tales(0, 300))
        await retriever.wait_for_indexes()
        assert index_of(retriever).kind == "mapped"
        before = await search(retriever, "tale 100 of words", top_k=5)
        await put(retriever, "new", "zebra")
        await retriever.delete_document(TENANT, "default", before.docs[0].document_id)
    (folder,) = (tmp_path / "indexes").iterdir()
    lists = (folder / "lists").read_bytes()
    for content in (lists, lists[:-1], b""):
        (folder / "lists").write_bytes(content)
        async with running(tmp_path, index=MAPPED) as retriever:
            assert index_of(retriever).kind == "mapped"
            assert index_of(retriever).size == 300
            assert ids(await search(retriever, "zebra", top_k=1)) == ["new"]
            after = await search(retriever, "tale 100 of words", top_k=400)
            assert len(after.docs) == 300
            assert before.docs[0].document_id not in ids(after)
        (folder,) = (tmp_path / "indexes").iterdir()
    async with running(tmp_path, index=varied(IndexSettings, ivf_threshold=32)) as retriever:
        assert index_of(retriever).kind == "ivf"
    assert [path.name for path in (tmp_path / "indexes").iterdir()] == ["1.index"]


async def test_index_too_large_for_memory_moves_to_disk(tmp_path):
    # 150 vectors of 256 floats fit into memory, 200 do not.
    chosen = varied(IndexSettings, ivf_threshold=32, probe_share=1.0, on_disk_bytes=150 * 1024)
    async with running(tmp_path, index=chosen) as retriever:
        await put_lines(retriever, tales(0, 140))
        await retriever.wait_for_indexes()
        assert index_of(retriever).kind == "ivf"
        await put_lines(retriever, tales(140, 200))
        await retriever.wait_for_indexes()
        assert (index_of(retriever).kind, index_of(retriever).size) == ("mapped", 200)
        assert ids(await search(retriever, "tale 190 of words", top_k=1)) == ["d190"]
