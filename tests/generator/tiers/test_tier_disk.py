import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from example_counts import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kernel_limits import largest_file
from page_target import MemoryBlocks
from safetensors.numpy import load_file
from structlog.testing import capture_logs
from tier_checks import check_tier, used_bytes
from tier_contract import (
    FINGERPRINT,
    PAGE_BYTES,
    KeepingTierContract,
    content_of,
    held,
    make_node,
    read,
    write,
)
from tiers_under_test import ROOT, open_disk, writing_process

from generator.tiers.base import KvBroken, KvMissing, TierFull

NODE = make_node(0)
FILE_BYTES = 4096 + 3 * PAGE_BYTES


class TestDiskTier(KeepingTierContract):
    def open_tier(self, folder):
        return open_disk(folder)


@pytest.fixture
def disk(tmp_path):
    disk = open_disk(tmp_path)
    yield disk
    check_tier(disk)
    disk.close()


def file_of(folder: Path, node=NODE, fingerprint=FINGERPRINT) -> Path:
    return folder / fingerprint / node.key[:2] / f"{node.key}.safetensors"


def files_under(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def is_file_cached(path: Path) -> bool | None:
    """None if the file system does not say it."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.preadv(descriptor, [bytearray(1)], 0, os.RWF_NOWAIT)
        return True
    except BlockingIOError:
        return False
    except OSError:
        return None
    finally:
        os.close(descriptor)


def flip(path: Path, at: int, bit: int = 0) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ (1 << bit)]))


def assert_broken(disk, folder: Path, damage: str) -> None:
    """Assert that reading finds the damage, and that the copy is deleted and counted."""
    with pytest.raises(KvBroken) as broken:
        read(disk, NODE)
    assert broken.value.damage == damage
    assert not file_of(folder).exists()
    assert disk.broken == {damage: 1}
    assert not disk.has(NODE.key, None)
    assert disk.nodes() == []
    with pytest.raises(KvMissing):
        read(disk, NODE)


def test_files_are_readable_by_the_safetensors_library(disk, tmp_path):
    write(disk, NODE)
    tensors = load_file(file_of(tmp_path))
    assert list(tensors) == ["kv"]
    assert (tensors["kv"] == content_of(NODE)).all()
    assert tensors["kv"].dtype == "uint8"


def test_pages_begin_aligned(disk, tmp_path):
    write(disk, NODE)
    data = file_of(tmp_path).read_bytes()
    assert (8 + int.from_bytes(data[:8], "little")) % 4096 == 0
    assert len(data) == FILE_BYTES == used_bytes(disk)
    assert disk.highest_stamp == 0


@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(at=st.integers(0, FILE_BYTES - 1), bit=st.integers(0, 7))
def test_any_flipped_bit_is_detected(tmp_path, at, bit):
    disk = open_disk(tmp_path)
    write(disk, NODE)
    flip(file_of(tmp_path), at, bit)
    with pytest.raises(KvBroken):
        read(disk, NODE)
    assert not file_of(tmp_path).exists()
    assert disk.broken.total() == 1


@pytest.mark.parametrize(("at", "damage"), [(7, "size"), (1, "header"), (60, "header"), (4095, "header")])
def test_a_flipped_bit_in_the_header_is_detected_on_opening(disk, tmp_path, at, damage):
    write(disk, NODE)
    flip(file_of(tmp_path), at)
    assert_broken(disk, tmp_path, damage)


def test_a_flipped_bit_in_a_page_is_detected_when_the_page_is_read(disk, tmp_path):
    write(disk, NODE)
    flip(file_of(tmp_path), 4096 + PAGE_BYTES)
    assert (read(disk, NODE, indexes=[0, 2]) == content_of(NODE)[[0, 2]]).all()
    assert_broken(disk, tmp_path, "checksum")


@pytest.mark.parametrize("at", [4096 + PAGE_BYTES, 4096 + 2 * PAGE_BYTES - 1])
def test_a_flipped_bit_in_a_page_is_detected_when_the_page_is_loaded(disk, tmp_path, at):
    write(disk, NODE)
    flip(file_of(tmp_path), at)
    with disk.reading(NODE.key, None) as reader:
        reader.load(0, [0], MemoryBlocks(1, (1800, 3200)))
        with pytest.raises(KvBroken) as broken:
            reader.load(1, [0], MemoryBlocks(1, (1800, 3200)))
    assert broken.value.damage == "checksum"
    assert not file_of(tmp_path).exists()


def test_a_page_of_more_parts_than_one_system_call_takes_is_loaded(tmp_path):
    disk = open_disk(tmp_path)
    write(disk, NODE)
    target = MemoryBlocks(1, [2] * (PAGE_BYTES // 2))
    with disk.reading(NODE.key, None) as reader:
        reader.load(1, [0], target)
    assert (target.page(0) == content_of(NODE)[1]).all()
    disk.close()


@pytest.mark.parametrize("size", [0, 7, 8, 500, 4096, FILE_BYTES - 1, FILE_BYTES + 1])
def test_a_file_of_wrong_length_is_broken(disk, tmp_path, size):
    write(disk, NODE)
    os.truncate(file_of(tmp_path), size)
    assert_broken(disk, tmp_path, "size")


def test_a_file_truncated_while_it_is_read_is_broken(disk, tmp_path):
    write(disk, NODE)
    with disk.reading(NODE.key, None) as reader:
        assert (reader.page(0) == content_of(NODE)[0]).all()
        os.truncate(file_of(tmp_path), 4096 + PAGE_BYTES + 10)
        with pytest.raises(KvBroken) as broken:
            reader.page(1)
    assert broken.value.damage == "size"
    assert not file_of(tmp_path).exists()


def test_a_deleted_file_is_missing(disk, tmp_path):
    write(disk, NODE)
    file_of(tmp_path).unlink()
    assert not disk.has(NODE.key, None)
    with pytest.raises(KvMissing):
        read(disk, NODE)
    assert used_bytes(disk) == 0
    assert disk.broken == {}
    write(disk, NODE)
    assert (read(disk, NODE) == content_of(NODE)).all()


def test_a_file_of_another_fingerprint_is_broken(disk, tmp_path):
    write(disk, NODE)
    write(open_disk(tmp_path / "other", "weights-2"), NODE)
    shutil.copy(file_of(tmp_path / "other", fingerprint="weights-2"), file_of(tmp_path))
    assert_broken(disk, tmp_path, "foreign")


def test_a_file_under_another_nodes_name_is_broken(disk, tmp_path):
    write(disk, NODE)
    write(disk, make_node(1))
    shutil.copy(file_of(tmp_path, make_node(1)), file_of(tmp_path))
    with pytest.raises(KvBroken) as broken:
        read(disk, NODE)
    assert broken.value.damage == "foreign"
    assert held(disk) == {make_node(1).key}


def test_an_error_of_another_read_does_not_delete_a_good_file(disk, tmp_path):
    write(disk, NODE)
    write(disk, make_node(1))
    flip(file_of(tmp_path, make_node(1)), 4096)
    with pytest.raises(KvBroken), disk.reading(NODE.key, None):
        read(disk, make_node(1))
    assert held(disk) == {NODE.key}


def test_a_file_that_several_readers_find_broken_is_counted_once(disk, tmp_path):
    write(disk, NODE)
    flip(file_of(tmp_path), 4096)
    with disk.reading(NODE.key, None) as one, disk.reading(NODE.key, None) as another:
        for reader in (one, another):
            with pytest.raises(KvBroken):
                reader.page(0)
    assert disk.broken == {"checksum": 1}


def test_a_good_file_that_replaced_a_broken_one_stays(disk, tmp_path):
    write(disk, NODE)
    good = shutil.copy(file_of(tmp_path), tmp_path / "good")
    flip(file_of(tmp_path), 4096)
    with disk.reading(NODE.key, None) as reader:
        Path(good).replace(file_of(tmp_path))
        with pytest.raises(KvBroken):
            reader.page(0)
    assert (read(disk, NODE) == content_of(NODE)).all()


def test_a_reader_is_not_affected_by_drop_and_rewrite(disk):
    write(disk, NODE)
    with disk.reading(NODE.key, None) as reader:
        disk.drop(NODE.key, None)
        write(disk, NODE, content=content_of(NODE, version=1))
        assert (reader.page(2) == content_of(NODE)[2]).all()
    assert (read(disk, NODE) == content_of(NODE, version=1)).all()


def test_broken_files_are_counted_and_deleted_at_the_start(tmp_path):
    disk = open_disk(tmp_path)
    for number in range(5):
        write(disk, make_node(number))
    os.truncate(file_of(tmp_path, make_node(0)), 100)
    flip(file_of(tmp_path, make_node(1)), 60)
    file_of(tmp_path, make_node(2)).write_bytes(os.urandom(9000))
    shutil.copy(file_of(tmp_path, make_node(4)), file_of(tmp_path, make_node(3)))
    again = open_disk(tmp_path)
    assert held(again) == {make_node(4).key}
    assert again.broken.total() == 4
    assert files_under(tmp_path) == {file_of(tmp_path, make_node(4)).relative_to(tmp_path).as_posix()}
    check_tier(again)


def test_files_never_exceed_max_bytes(tmp_path):
    disk = open_disk(tmp_path, max_bytes=2 * FILE_BYTES)
    write(disk, NODE)
    write(disk, make_node(1))
    with pytest.raises(TierFull, match="do not fit"):
        write(disk, make_node(2, 0, 1))
    assert held(disk) == {NODE.key, make_node(1).key}
    disk.drop(NODE.key, None)
    write(disk, make_node(2))
    check_tier(disk)
    assert used_bytes(open_disk(tmp_path, max_bytes=2 * FILE_BYTES)) == 2 * FILE_BYTES


def test_files_being_written_count_towards_max_bytes(tmp_path):
    disk = open_disk(tmp_path, max_bytes=2 * FILE_BYTES - 1)
    with pytest.raises(ValueError, match="0 of 3"), disk.writing(NODE, None), pytest.raises(TierFull):
        write(disk, make_node(1))
    write(disk, make_node(1))
    check_tier(disk)


@pytest.mark.parametrize("size", [0, 4096 + 10, FILE_BYTES - 1])
def test_a_write_that_the_kernel_refuses_leaves_no_file(disk, tmp_path, size):
    with largest_file(size), pytest.raises(TierFull, match=os.strerror(errno.EFBIG)):
        write(disk, NODE)
    assert files_under(tmp_path) == set()
    write(disk, NODE)
    assert (read(disk, NODE) == content_of(NODE)).all()


@contextmanager
def failing_for_folders(name: str, code: int) -> Iterator[None]:
    """Makes a system call fail for folders only, as on a broken disk or without a free descriptor."""
    call = getattr(os, name)

    def fail_for_folders(target, *arguments, **keywords):
        if Path(f"/proc/self/fd/{target}" if isinstance(target, int) else target).is_dir():
            raise OSError(code, os.strerror(code))
        return call(target, *arguments, **keywords)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, name, fail_for_folders)
        yield


@pytest.mark.parametrize(("call", "code"), [("fsync", errno.EIO), ("open", errno.EMFILE)])
def test_a_node_whose_folder_cannot_be_synced_is_not_published(disk, tmp_path, call, code):
    """The caller is told that there is no copy. So nobody would ever delete a file that stayed."""
    with failing_for_folders(call, code), pytest.raises(TierFull, match=os.strerror(code)):
        write(disk, NODE)
    assert files_under(tmp_path) == set()
    assert not disk.has(NODE.key, None)
    assert used_bytes(disk) == 0
    check_tier(disk)


def test_a_writer_that_fails_after_replacing_anothers_file_leaves_no_entry_of_it(disk, tmp_path):
    def write_while_another_does():
        with disk.writing(NODE, None) as writer:
            for index, page in enumerate(content_of(NODE)):
                writer.page(index)[:] = page
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(os, "fsync", lambda descriptor: None)
                write(disk, NODE)
            assert held(disk) == {NODE.key}

    with failing_for_folders("fsync", errno.EIO), pytest.raises(TierFull):
        write_while_another_does()
    assert files_under(tmp_path) == set()
    assert used_bytes(disk) == 0
    check_tier(disk)


def test_a_node_that_can_neither_be_synced_nor_deleted_is_published(disk, tmp_path, monkeypatch):
    """The file system became read-only after an error: the file is there, and somebody has to know it."""
    unlink = Path.unlink

    def refuse(path, missing_ok=False):
        if path == file_of(tmp_path):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        unlink(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", refuse)
    with failing_for_folders("fsync", errno.EIO):
        write(disk, NODE)
    assert held(disk) == {NODE.key}
    assert used_bytes(disk) == FILE_BYTES
    assert (read(disk, NODE) == content_of(NODE)).all()


def test_an_error_on_closing_the_file_does_not_deny_that_it_is_published(disk, tmp_path, monkeypatch):
    close = os.close

    def close_and_fail(descriptor):
        written = Path(f"/proc/self/fd/{descriptor}").readlink() == file_of(tmp_path)
        close(descriptor)
        if written:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(os, "close", close_and_fail)
        write(disk, NODE)
    assert held(disk) == {NODE.key}
    assert files_under(tmp_path) == {file_of(tmp_path).relative_to(tmp_path).as_posix()}


def test_the_header_grows_with_the_nodes_path(disk, tmp_path):
    path = tuple(f"{number:064x}" for number in range(2000))
    deep = msgspec.structs.replace(NODE, path=path, namespace="n" * 1024)
    write(disk, deep)
    assert file_of(tmp_path).stat().st_size == used_bytes(disk) > 2000 * 64
    assert [stored.node for stored in open_disk(tmp_path).nodes()] == [deep]
    assert (read(disk, deep) == content_of(NODE)).all()


IN_A_SMALL_DISK = """
import os, subprocess, sys
from pathlib import Path
import pytest
from tier_checks import check_tier
from tier_contract import *
from tiers_under_test import open_disk
from generator.tiers.base import TierFull

folder = Path(sys.argv[1])
def mount(*options):
    subprocess.run(["mount", "-t", "tmpfs", *options, "none", folder], check=True)
mount("-o", "size=64k")
disk = open_disk(folder)
write(disk, make_node(0))
write(disk, make_node(1))
with pytest.raises(TierFull, match="No space left"):
    for number in range(2, 9):
        write(disk, make_node(number))
assert not list(folder.rglob("*.tmp"))
disk.drop(make_node(0).key, None)
write(disk, make_node(number))
check_tier(disk)

mount("-o", "remount,ro")
for again in (disk, open_disk(folder)):
    assert (read(again, make_node(1)) == content_of(make_node(1))).all()
    with pytest.raises(TierFull, match="Read-only file system"):
        write(again, make_node(0))
    again.drop(make_node(1).key, None)
    assert make_node(1).key in held(again)
    check_tier(again)
print("passed")
"""


def test_a_full_disk_and_a_read_only_disk(tmp_path):
    """A real file system of 64 KiB, in a mount namespace that needs no privileges on most machines."""
    unshare = ["unshare", "--user", "--map-root-user", "--mount"]
    if not shutil.which("unshare") or subprocess.run([*unshare, "true"], check=False, capture_output=True).returncode:
        pytest.skip("this machine does not allow mounts in a user namespace")
    search = os.pathsep.join(map(str, [ROOT, *Path(__file__).parents[:3]]))
    done = subprocess.run(
        [*unshare, sys.executable, "-c", IN_A_SMALL_DISK, tmp_path],
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": search},
    )
    assert done.stdout.endswith("passed\n"), done.stderr
    assert "the disk tier is read-only" in done.stdout


def test_a_path_that_cannot_hold_a_folder_gets_one_warning_and_no_files(tmp_path):
    """There is a file in its place, so that not even root can write there."""
    (tmp_path / "file").touch()
    with capture_logs() as logs:
        disk = open_disk(tmp_path / "file")
        assert not disk.has(NODE.key, None)
        with pytest.raises(KvMissing):
            read(disk, NODE)
        with pytest.raises(TierFull):
            write(disk, NODE)
        disk.drop(NODE.key, None)
        assert disk.nodes() == []
    check_tier(disk)
    assert [entry["event"] for entry in logs] == ["the disk tier is read-only"]


def test_other_fingerprints_are_deleted_oldest_first_if_room_is_short(tmp_path):
    for age, name in ((30, "weights-c"), (20, "weights-a"), (10, "weights-b")):
        write(open_disk(tmp_path, name), NODE)
        os.utime(file_of(tmp_path, fingerprint=name), (10**9 - age, 10**9 - age))
    assert others(open_disk(tmp_path, max_bytes=3 * FILE_BYTES), tmp_path) == {"weights-a", "weights-b", "weights-c"}
    disk = open_disk(tmp_path, max_bytes=3 * FILE_BYTES - 1)
    assert others(disk, tmp_path) == {"weights-a", "weights-b"}
    write(disk, NODE)
    assert others(disk, tmp_path) == {"weights-b"}
    write(disk, make_node(1))
    assert others(disk, tmp_path) == set()
    with pytest.raises(TierFull):
        write(disk, make_node(2))


def test_files_that_another_process_deleted_take_no_room(tmp_path):
    one, other = (open_disk(tmp_path, max_bytes=2 * FILE_BYTES) for _ in range(2))
    for number in (0, 1):
        write(one, make_node(number))
    with pytest.raises(TierFull):
        write(one, make_node(2))
    other.drop(make_node(0).key, None)
    write(one, make_node(2))
    assert used_bytes(one) == 2 * FILE_BYTES


def others(_disk, folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()} - {FINGERPRINT}


def test_foreign_files_are_never_deleted(tmp_path):
    foreign = ["notes.txt", "weights-2/readme", "models/v2/model.safetensors", "weights-2/ab/other.safetensors"]
    for name in foreign:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(bytes(5000))
    write(open_disk(tmp_path, "weights-2"), NODE)
    open_disk(tmp_path, max_bytes=0)
    assert files_under(tmp_path) == set(foreign)


def test_processes_find_what_others_publish(disk, tmp_path):
    with writing_process("disk", tmp_path) as other:
        assert not disk.has(NODE.key, None)
        other.publish()
        assert disk.has(NODE.key, None)
        assert (read(disk, NODE) == content_of(NODE)).all()
        assert held(disk) == {NODE.key}
        assert used_bytes(disk) == FILE_BYTES


def test_starting_leaves_files_alone_that_others_are_writing(tmp_path):
    with writing_process("disk", tmp_path) as other:
        disk = open_disk(tmp_path)
        assert disk.nodes() == []
        other.publish()
        assert (read(disk, NODE) == content_of(NODE)).all()


def test_starting_deletes_the_files_of_a_killed_writer(tmp_path):
    with writing_process("disk", tmp_path) as other:
        other.kill()
    assert len(files_under(tmp_path)) == 1
    disk = open_disk(tmp_path)
    assert files_under(tmp_path) == set()
    assert disk.nodes() == []
    assert disk.broken == {}


def test_a_copy_that_another_process_dropped_is_gone(disk, tmp_path):
    other = open_disk(tmp_path)
    write(disk, NODE)
    other.drop(NODE.key, None)
    assert disk.nodes() == []
    assert used_bytes(disk) == 0


@pytest.mark.parametrize("file_cache", [True, False])
def test_files_stay_in_the_file_cache_only_if_they_may(tmp_path, file_cache):
    disk = open_disk(tmp_path, file_cache=file_cache)
    write(disk, NODE)
    written = is_file_cached(file_of(tmp_path))
    if written is None or written > file_cache:
        pytest.skip("this file system keeps files in memory, or does not tell")
    assert (read(disk, NODE) == content_of(NODE)).all()
    assert (written, is_file_cached(file_of(tmp_path))) == (file_cache, file_cache)
