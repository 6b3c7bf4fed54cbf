"""Files are taken out of the operating system's file cache, where the file system allows it."""

from pathlib import Path

import pytest

from ragtree_lab.measuring.file_cache import evict_from_file_cache


def on_tmpfs(folder: Path) -> bool:
    mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    covering = [(len(mount[1]), mount[2]) for mount in mounts if folder.is_relative_to(mount[1])]
    return max(covering)[1] == "tmpfs"


def test_files_are_evicted_and_can_be_read_again(tmp_path):
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "file").write_bytes(b"x" * 100_000)
    (tmp_path / "empty").touch()
    if on_tmpfs(tmp_path):
        pytest.skip("tmpfs keeps files in memory")
    assert evict_from_file_cache(tmp_path)
    assert (tmp_path / "below" / "file").read_bytes() == b"x" * 100_000


def test_a_file_system_in_memory_is_told_apart():
    folder = Path("/dev/shm")
    if not on_tmpfs(folder):
        pytest.skip("/dev/shm is no tmpfs")
    file = folder / "ragtree-test-file-cache" / "file"
    file.parent.mkdir(exist_ok=True)
    try:
        file.write_bytes(b"x")
        assert not evict_from_file_cache(file.parent)
    finally:
        file.unlink()
        file.parent.rmdir()
