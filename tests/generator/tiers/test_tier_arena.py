import os
import struct
from contextlib import ExitStack
from pathlib import Path

import msgspec
import numpy as np
import pytest
from tier_contract import (
    FINGERPRINT,
    PAGE_BYTES,
    PAGE_TOKENS,
    KeepingTierContract,
    content_of,
    hand_out,
    held,
    make_node,
    read,
    write,
)
from tiers_under_test import open_arena, writing_process

from generator.tiers.arena import HostArena, State
from generator.tiers.base import KvBroken, KvMissing, PagesTaken, TierFull
from protocol.errors import ConfigError
from protocol.kv import Pages

NODE = make_node(0)
SHARED_MEMORY = Path("/dev/shm")


class TestHostArena(KeepingTierContract):
    def open_tier(self, folder):
        return open_arena(folder)


@pytest.fixture
def opened(tmp_path):
    """Opens arenas on one file, and closes them at the end."""
    with ExitStack() as stack:

        def open_one(**changes) -> HostArena:
            arena = open_arena(tmp_path, **changes)
            stack.callback(arena.close)
            return arena

        yield open_one


@pytest.fixture
def arena(opened):
    arena = opened()
    yield arena
    arena.check_integrity()


def test_a_copy_under_another_stamp_is_another_copy(arena):
    write(arena, NODE, hand_out(NODE, 5))
    for stamp in (4, 6):
        assert not arena.has(NODE.key, hand_out(NODE, stamp))
        with pytest.raises(KvMissing), arena.reading(NODE.key, hand_out(NODE, stamp)):
            pass
        arena.drop(NODE.key, hand_out(NODE, stamp))
    assert (read(arena, NODE, hand_out(NODE, 5)) == content_of(NODE)).all()


def test_a_copy_is_missing_under_another_key_or_in_other_pages(arena):
    write(arena, NODE)
    pages = hand_out(NODE)
    assert not arena.has(make_node(1).key, pages)
    first, second, third = pages.numbers
    for numbers in (pages.numbers[:2], (first, third, second), (*pages.numbers, 9), (), (-1,), (10**6,)):
        assert not arena.has(NODE.key, Pages(numbers, pages.stamp))


def test_a_late_writer_cannot_write_pages_that_were_handed_out_again(arena):
    pages = hand_out(NODE, 9)
    write(arena, NODE, pages)
    with pytest.raises(PagesTaken):
        write(arena, make_node(1), Pages(pages.numbers, 8), content_of(NODE, version=1))
    assert (read(arena, NODE, pages) == content_of(NODE)).all()
    arena.drop(NODE.key, pages)
    with pytest.raises(PagesTaken):
        write(arena, make_node(1), Pages(pages.numbers, 8))
    assert arena.nodes() == []


def test_one_page_that_was_handed_out_again_refuses_a_writer(arena):
    write(arena, NODE, hand_out(NODE, 9))
    others = Pages((hand_out(NODE).numbers[0], 20, 21), 8)
    with pytest.raises(PagesTaken):
        write(arena, make_node(1), others)
    assert arena.nodes()[0].node == NODE


def test_a_writer_keeps_its_pages_until_it_is_done(arena):
    late, next_one = hand_out(NODE, 1), hand_out(NODE, 2)
    with arena.writing(NODE, late) as writer:
        for index, page in enumerate(content_of(NODE)):
            writer.page(index)[:] = page
            with pytest.raises(PagesTaken):
                write(arena, make_node(1), next_one)
            arena.drop(NODE.key, late)
    assert (read(arena, NODE, late) == content_of(NODE)).all()
    write(arena, make_node(1), next_one)
    assert held(arena) == {make_node(1).key}


def test_reading_raises_if_the_pages_are_handed_out_again(arena):
    write(arena, NODE, hand_out(NODE, 1))
    with pytest.raises(KvBroken) as broken, arena.reading(NODE.key, hand_out(NODE, 1)):
        write(arena, NODE, hand_out(NODE, 2), content_of(NODE, version=1))
    assert broken.value.damage == "changed"


def test_reading_raises_if_the_copy_is_dropped(arena):
    write(arena, NODE)
    with pytest.raises(KvBroken), arena.reading(NODE.key, hand_out(NODE)):
        arena.drop(NODE.key, hand_out(NODE))


def test_a_node_that_lost_a_page_is_missing(opened):
    arena = opened()
    write(arena, NODE, hand_out(NODE, 1))
    write(arena, make_node(1), Pages((hand_out(NODE).numbers[1], 20, 21), 2))
    assert not arena.has(NODE.key, hand_out(NODE, 1))
    assert held(arena) == {make_node(1).key}
    again = opened()
    again.check_integrity()
    assert held(again) == {make_node(1).key}


@pytest.mark.parametrize("pages", [None, Pages((0, 1), 1), Pages((0, 1, 48), 1), Pages((-1, 0, 1), 1), Pages((), 1)])
def test_writing_a_node_without_valid_pages_raises(arena, pages):
    with pytest.raises(TierFull), arena.writing(NODE, pages):
        pass
    arena.drop(NODE.key, pages)


def test_writing_a_node_whose_path_exceeds_the_header_raises(arena):
    deep = msgspec.structs.replace(NODE, path=("f" * 64,) * 100)
    with pytest.raises(TierFull, match="100 segments"):
        write(arena, deep)


@pytest.mark.parametrize("change", [{"fingerprint": "weights-2"}, {"page_bytes": 5001}, {"page_count": 40}])
def test_an_arena_of_another_geometry_is_replaced_and_stays_with_its_users(opened, tmp_path, change):
    old = opened()
    write(old, NODE)
    new = opened(**change)
    assert new.nodes() == []
    assert (read(old, NODE) == content_of(NODE)).all()
    write(old, make_node(1))
    assert new.nodes() == []
    old.remove()
    assert (tmp_path / "kv.arena").exists()


@pytest.mark.parametrize(
    "spoil", [lambda file: os.truncate(file, 9000), lambda file: file.open("r+b").write(bytes(99))]
)
def test_an_incomplete_arena_is_replaced(opened, tmp_path, spoil):
    opened().close()
    spoil(tmp_path / "kv.arena")
    arena = opened()
    write(arena, NODE)
    assert (read(arena, NODE) == content_of(NODE)).all()


def test_a_node_with_an_unreadable_header_is_missing(opened, tmp_path):
    arena = opened()
    write(arena, NODE)
    first = hand_out(NODE).numbers[0]
    with (tmp_path / "kv.arena").open("r+b") as file:
        file.seek(4096 * (1 + first) + 32)
        file.write(b"\xff")
    assert not arena.has(NODE.key, hand_out(NODE))
    assert arena.nodes() == []
    opened().check_integrity()


def test_pages_lie_at_the_offsets_of_the_layout(opened, tmp_path):
    """A header of 4 KiB, another for each page, and pages at multiples of 4 KiB."""
    write(opened(), NODE, hand_out(NODE, 5))
    data = (tmp_path / "kv.arena").read_bytes()
    for index, number in enumerate(hand_out(NODE).numbers):
        header = struct.unpack_from("<QQII", data, 4096 * (1 + number))
        assert header == (2, 5, index, 3)
        at = 4096 * (1 + 48) + 8192 * number
        assert data[at : at + PAGE_BYTES] == content_of(NODE)[index].tobytes()
    assert len(data) == 4096 * (1 + 48) + 8192 * 48


@pytest.mark.skipif(not SHARED_MEMORY.is_dir(), reason="there is no /dev/shm")
def test_too_little_memory_is_an_error_at_the_start(tmp_path):
    """Asks the real /dev/shm for twice its size, which it refuses before it reserves any."""
    whole = os.statvfs(SHARED_MEMORY)
    pages = 2 * whole.f_blocks * whole.f_frsize // 4096
    path = SHARED_MEMORY / f"ragtree-test-{os.getpid()}.arena"
    try:
        with pytest.raises(ConfigError, match="--shm-size") as refused:
            HostArena(path, FINGERPRINT, PAGE_TOKENS, 4096, pages)
        assert refused.value.param == "generator.host_gib"
        assert not path.exists()
    finally:
        Path(f"{path}.lock").unlink(missing_ok=True)


def test_a_path_that_cannot_hold_a_file_is_a_config_error(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError):
        open_arena(tmp_path / "file")


def test_remove_keeps_a_file_that_others_use(opened, tmp_path):
    first, second = opened(), opened()
    write(first, NODE)
    first.remove()
    assert (read(second, NODE) == content_of(NODE)).all()
    assert held(opened()) == {NODE.key}


def test_the_last_user_removes_the_file(arena, opened, tmp_path):
    opened().remove()
    assert (tmp_path / "kv.arena").exists()
    alone = open_arena(tmp_path / "alone")
    alone.remove()
    assert not (tmp_path / "alone" / "kv.arena").exists()


def test_a_page_in_use_outlives_the_arena(opened):
    arena = opened()
    write(arena, NODE)
    with arena.reading(NODE.key, hand_out(NODE)) as reader:
        page = reader.page(0)
    arena.close()
    assert (page == content_of(NODE)[0]).all()


def test_processes_share_what_each_one_writes(arena, tmp_path):
    write(arena, make_node(1))
    with writing_process("arena", tmp_path) as other:
        assert not arena.has(NODE.key, hand_out(NODE))
        with pytest.raises(PagesTaken):
            write(arena, NODE, hand_out(NODE, 2))
        other.publish()
        assert (read(arena, NODE) == content_of(NODE)).all()
        arena.drop(NODE.key, hand_out(NODE))
    assert held(arena) == {make_node(1).key}


def test_attaching_leaves_pages_alone_that_others_are_writing(opened, tmp_path):
    with writing_process("arena", tmp_path) as other:
        arena = opened()
        header_at = 4096 * (1 + hand_out(NODE).numbers[0])
        assert (tmp_path / "kv.arena").read_bytes()[header_at] == State.WRITING
        other.publish()
        assert (read(arena, NODE) == content_of(NODE)).all()


def test_attaching_frees_the_pages_of_a_killed_writer(opened, tmp_path):
    with writing_process("arena", tmp_path, stamp=4) as other:
        other.kill()
    arena = opened()
    arena.check_integrity()
    assert arena.nodes() == []


def test_pages_of_a_killed_writer_can_be_written_without_attaching_again(arena, tmp_path):
    with writing_process("arena", tmp_path, stamp=4) as other:
        other.kill()
    assert not arena.has(NODE.key, hand_out(NODE, 4))
    write(arena, NODE, hand_out(NODE, 5), np.flip(content_of(NODE)))
    assert (read(arena, NODE, hand_out(NODE, 5)) == np.flip(content_of(NODE))).all()


def test_copies_that_a_killed_process_published_stay(opened, tmp_path):
    with writing_process("arena", tmp_path, stamp=4) as other:
        other.publish()
        other.kill()
    arena = opened()
    (stored,) = arena.nodes()
    assert stored == (NODE, hand_out(NODE, 4))
    assert (read(arena, NODE, stored.pages) == content_of(NODE)).all()


def test_another_users_file_is_refused(tmp_path, monkeypatch):
    """Any user can create a file in shared memory, and could read and forge tenants' KV through it."""
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(ConfigError, match="belongs to another user"):
        open_arena(tmp_path)


def test_a_symbolic_link_is_refused(tmp_path):
    open_arena(tmp_path).close()
    (file,) = (path for path in tmp_path.iterdir() if path.suffix != ".lock")
    elsewhere = tmp_path / "elsewhere"
    file.rename(elsewhere)
    file.symlink_to(elsewhere)
    with pytest.raises(ConfigError):
        open_arena(tmp_path)
