"""A data folder with another recorded number of shards is refused before anything is written."""

import pytest
from retriever_cases import put, running

from protocol.errors import ConfigError
from retriever.sharding.shard_folders import ShardFolders


def files(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_single_shard_uses_the_root_and_records_nothing(tmp_path):
    folders = ShardFolders(tmp_path / "retriever", 1)
    folders.record_count()
    assert folders.of(0) == tmp_path / "retriever"
    assert files(tmp_path) == {}


def test_several_shards_have_folders_and_a_recorded_count(tmp_path):
    folders = ShardFolders(tmp_path / "retriever", 3)
    for _ in range(2):
        folders.record_count()
    assert len({folders.of(shard) for shard in range(3)}) == 3
    assert {path.name for path in files(tmp_path)} == {"shards.json"}
    for count in (1, 2, 4):
        before = files(tmp_path)
        with pytest.raises(ConfigError, match=r"retriever\.shards\.count"):
            ShardFolders(tmp_path / "retriever", count).record_count()
        assert files(tmp_path) == before


async def test_folder_without_a_record_has_one_shard(tmp_path):
    async with running(tmp_path) as retriever:
        await put(retriever, "a", "elephant")
    ShardFolders(tmp_path, 1).record_count()
    before = files(tmp_path)
    with pytest.raises(ConfigError):
        ShardFolders(tmp_path, 2).record_count()
    assert files(tmp_path) == before


def test_broken_record_is_refused(tmp_path):
    (tmp_path / "shards.json").write_bytes(b"{")
    for count in (1, 2):
        with pytest.raises(ConfigError):
            ShardFolders(tmp_path, count).record_count()


def test_empty_folder_accepts_any_count(tmp_path):
    (tmp_path / "retriever").mkdir()
    ShardFolders(tmp_path / "retriever", 2).record_count()
