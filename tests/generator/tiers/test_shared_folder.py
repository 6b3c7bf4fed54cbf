"""A folder that several machines mount. They see each other's files, but not each other's locks."""

import os
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import pytest
from tier_contract import content_of, held, make_node, read, write, write_some
from tiers_under_test import open_disk

from generator.tiers import disk_folder
from generator.tiers.disk_folder import boot_id

NODE = make_node(0)
DAY_S = 24 * 3600


@pytest.fixture
def separate_locks(monkeypatch):
    """Locks that this machine does not see, as on a network file system."""
    monkeypatch.setattr(disk_folder.fcntl, "flock", lambda descriptor, operation: None)


def temporary_files(folder: Path) -> list[Path]:
    return list(folder.rglob("*.tmp"))


def age(path: Path, seconds: float) -> None:
    then = time.time() - seconds
    os.utime(path, (then, then))


def begin_writing(tmp_path, machine: str) -> Path:
    """Let a process of a machine die while it writes a node; the file that it leaves."""
    disk = open_disk(tmp_path, machine=machine)
    before = set(temporary_files(tmp_path))
    unlink = Path.unlink
    with pytest.MonkeyPatch.context() as patch, suppress(KeyboardInterrupt):
        patch.setattr(Path, "unlink", lambda path, missing_ok=False: None)
        write_some(disk, NODE, [0, 1], KeyboardInterrupt())
    assert Path.unlink is unlink
    (left,) = set(temporary_files(tmp_path)) - before
    return left


@pytest.mark.usefixtures("separate_locks")
def test_a_machine_leaves_alone_what_another_one_is_writing(tmp_path):
    writer = open_disk(tmp_path, machine="one")
    with writer.writing(NODE, None) as pages:
        for index, page in enumerate(content_of(NODE)):
            pages.page(index)[:] = page
        other = open_disk(tmp_path, machine="two")
        assert other.nodes() == []
        assert len(temporary_files(tmp_path)) == 1
    assert (read(other, NODE) == content_of(NODE)).all()
    assert held(writer) == held(other) == {NODE.key}


def test_a_machine_deletes_what_its_own_dead_processes_left(tmp_path):
    mine, other = begin_writing(tmp_path, "one"), begin_writing(tmp_path, "two")
    open_disk(tmp_path, machine="one")
    assert not mine.exists()
    assert other.exists()


@pytest.mark.parametrize(("seconds", "left"), [(0, True), (DAY_S - 60, True), (DAY_S + 60, False)])
def test_what_another_machine_left_is_deleted_after_a_day(tmp_path, seconds, left):
    file = begin_writing(tmp_path, "two")
    age(file, seconds)
    open_disk(tmp_path, machine="one")
    assert file.exists() == left


def test_an_old_file_that_is_still_locked_stays(tmp_path):
    """On a file system whose locks all machines see, a slow writer keeps its file."""
    writer = open_disk(tmp_path, machine="two")
    with writer.writing(NODE, None) as pages:
        for index, page in enumerate(content_of(NODE)):
            pages.page(index)[:] = page
        (file,) = temporary_files(tmp_path)
        age(file, 2 * DAY_S)
        open_disk(tmp_path, machine="one")
        assert file.exists()
    assert held(writer) == {NODE.key}


@pytest.mark.parametrize(("seconds", "left"), [(0, True), (DAY_S + 60, False)])
def test_files_of_earlier_releases_count_as_another_machines(tmp_path, seconds, left):
    write(open_disk(tmp_path), NODE)
    (folder,) = [path.parent for path in tmp_path.rglob("*.safetensors")]
    file = folder / f"{NODE.key}.abcd1234.tmp"
    file.touch()
    age(file, seconds)
    open_disk(tmp_path)
    assert file.exists() == left


def test_a_machine_is_known_by_its_boot(tmp_path):
    told = subprocess.run(["cat", "/proc/sys/kernel/random/boot_id"], check=True, capture_output=True, text=True)
    assert boot_id() == told.stdout.strip()
    with pytest.raises(ValueError, match="0 of 3"), open_disk(tmp_path).writing(NODE, None):
        (file,) = temporary_files(tmp_path)
    assert file.name.split(".")[:2] == [NODE.key, boot_id()]
