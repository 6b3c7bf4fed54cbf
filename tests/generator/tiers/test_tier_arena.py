import threading
from contextlib import suppress

import msgspec
import numpy as np
import pytest
from page_target import MemoryBlocks
from tier_checks import check_tier
from tier_contract import (
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
from generator.tiers.arena_file import decode_node
from generator.tiers.base import KvBroken, KvMissing, PagesTaken, StoredNode, TierFull
from protocol.kv import Pages, Paging

NODE = make_node(0)


class TestHostArena(KeepingTierContract):
    def open_tier(self, folder):
        return open_arena(folder)


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


def test_the_highest_stamp_outlives_its_copy_and_the_process(opened):
    arena = opened()
    assert arena.highest_stamp == 0
    write(arena, NODE, hand_out(NODE, 9))
    write(arena, make_node(1), hand_out(make_node(1), 5))
    assert arena.highest_stamp == 9
    arena.drop(NODE.key, hand_out(NODE, 9))
    assert held(arena) == {make_node(1).key}
    assert opened().highest_stamp == 9


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


class TestHeldPages:
    def test_nobody_writes_to_them(self, arena, opened):
        """Neither this process nor another one with the arena. Once they are let go, both may."""
        write(arena, NODE, hand_out(NODE, 1))
        one, other = (each.hold({NODE.key: hand_out(NODE, 1)}) for each in (arena, opened()))
        assert not one.missing
        assert not other.missing
        arena.drop(NODE.key, hand_out(NODE, 1))
        for holder in (one, other):
            for writer in (arena, opened()):
                with pytest.raises(PagesTaken):
                    write(writer, make_node(1), hand_out(NODE, 2))
            holder.let_go()
        write(arena, make_node(1), hand_out(NODE, 2))
        assert held(arena) == {make_node(1).key}

    def test_their_content_stays_after_a_drop(self, arena):
        write(arena, NODE, hand_out(NODE, 1))
        pages = arena.hold({NODE.key: hand_out(NODE, 1)})
        arena.drop(NODE.key, hand_out(NODE, 1))
        target = MemoryBlocks(3, [PAGE_BYTES])
        pages.load([(NODE.key, 0, range(3))], target)
        assert all((target.page(index) == page).all() for index, page in enumerate(content_of(NODE)))
        pages.let_go()

    def test_parts_of_several_copies_are_loaded_with_one_copy(self, arena):
        behind = make_node(1)
        write(arena, NODE)
        write(arena, behind)
        pages = arena.hold({NODE.key: hand_out(NODE), behind.key: hand_out(behind)})
        target = MemoryBlocks(3, [PAGE_BYTES])
        pages.load([(NODE.key, 2, [0]), (behind.key, 0, [2, 1])], target)
        assert target.written == [3]
        loaded = [target.page(block) for block in (0, 2, 1)]
        assert (loaded == np.array([content_of(NODE)[2], *content_of(behind)[:2]])).all()
        with pytest.raises(IndexError):
            pages.load([(NODE.key, 2, [0, 1])], target)
        pages.let_go()

    def test_what_is_not_there_is_missing(self, arena):
        other = make_node(1)
        write(arena, NODE, hand_out(NODE, 3))
        wrong = {
            other.key: hand_out(NODE, 3),
            "stamp": hand_out(NODE, 2),
            "nothing": Pages((), 3),
            "outside": Pages((10_000,), 3),
        }
        pages = arena.hold({NODE.key: hand_out(NODE, 3), **wrong})
        assert pages.missing == list(wrong)
        pages.let_go()

    def test_pages_that_are_being_written_cannot_be_held(self, arena):
        with arena.writing(NODE, hand_out(NODE, 1)) as writer:
            for index, page in enumerate(content_of(NODE)):
                writer.page(index)[:] = page
            pages = arena.hold({NODE.key: hand_out(NODE, 1)})
            assert pages.missing == [NODE.key]
            pages.let_go()
        pages = arena.hold({NODE.key: hand_out(NODE, 1)})
        assert not pages.missing
        pages.let_go()


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
    # Its other pages are free.
    check_tier(arena)
    again = opened()
    check_tier(again)
    assert held(again) == {make_node(1).key}


@pytest.mark.parametrize("pages", [None, Pages((0, 1), 1), Pages((0, 1, 48), 1), Pages((-1, 0, 1), 1), Pages((), 1)])
def test_writing_a_node_without_valid_pages_raises(arena, pages):
    with pytest.raises(TierFull), arena.writing(NODE, pages):
        pass
    arena.drop(NODE.key, pages)


def hexadecimal(number: int) -> str:
    return f"{number:064x}"


@pytest.mark.parametrize(
    ("tokens", "segments", "namespace"), [(1, 101, "0f" * 16), (40, 300, "n" * 1024), (8000, 8000, "n" * 1024)]
)
def test_a_node_may_have_a_path_as_long_as_its_prompt_allows(opened, tokens, segments, namespace):
    """The longest path of a query of the stack fits the header of one page."""
    arena = opened(page_count=520)
    deep = msgspec.structs.replace(
        NODE, path=tuple(map(hexadecimal, range(segments))), namespace=namespace, tokens=tokens
    )
    numbers = range(Paging(PAGE_TOKENS).page_count(deep.prefix_tokens, tokens))
    write(arena, deep, Pages(tuple(numbers), 1))
    for each in (arena, opened(page_count=520)):
        assert each.nodes() == [StoredNode(deep, Pages(tuple(numbers), 1))]
        assert (read(each, deep, Pages(tuple(numbers), 1)) == content_of(deep)).all()


def test_a_path_that_exceeds_the_headers_of_all_pages_is_refused(arena):
    deep = msgspec.structs.replace(NODE, path=("f" * 64,) * 400)
    with pytest.raises(TierFull, match=r"400 segments, whose record takes 14.* bytes: .* hold 12192 bytes"):
        write(arena, deep)


def test_a_node_that_is_overwritten_while_it_is_listed_is_not_listed(arena, opened, monkeypatch):
    """Otherwise a mixture of two records could be read as a node."""
    write(arena, NODE, hand_out(NODE, 1))
    other, successor = opened(), Pages(hand_out(NODE).numbers, 2)

    def overwrite_meanwhile(record):
        monkeypatch.undo()
        write(other, make_node(1), successor)
        return decode_node(record)

    monkeypatch.setattr("generator.tiers.arena.decode_node", overwrite_meanwhile)
    assert arena.nodes() == []
    assert arena.nodes() == [StoredNode(make_node(1), successor)]


def test_a_node_with_an_unreadable_header_is_missing(opened, tmp_path):
    arena = opened()
    write(arena, NODE)
    first = hand_out(NODE).numbers[0]
    with (tmp_path / "kv.arena").open("r+b") as file:
        file.seek(4096 * (1 + first) + 32)
        file.write(b"\xff")
    assert not arena.has(NODE.key, hand_out(NODE))
    assert arena.nodes() == []
    check_tier(opened())


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
    check_tier(arena)
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


def test_a_third_instance_frees_the_pages_of_a_killed_one_and_no_others(opened, tmp_path):
    with (
        writing_process("arena", tmp_path, number=0, stamp=4) as killed,
        writing_process("arena", tmp_path, number=1, stamp=5) as alive,
    ):
        killed.kill()
        third = opened()
        assert states(tmp_path, hand_out(NODE)) == [State.FREE] * 3
        assert states(tmp_path, hand_out(make_node(1))) == [State.WRITING] * 3
        alive.publish()
        assert held(third) == {make_node(1).key}
    assert (read(third, make_node(1), hand_out(make_node(1), 5)) == content_of(make_node(1))).all()
    check_tier(third)


def test_a_third_instance_leaves_a_page_alone_that_a_live_writer_took_from_a_killed_one(arena, opened, tmp_path):
    with writing_process("arena", tmp_path, stamp=4) as killed:
        killed.kill()
    taken = Pages((20, hand_out(NODE).numbers[1], 21), 5)
    with arena.writing(make_node(1), taken) as writer:
        writer.page(0)[:] = content_of(make_node(1))[0]
        third = opened()
        assert states(tmp_path, hand_out(NODE)) == [State.FREE, State.WRITING, State.FREE]
        assert states(tmp_path, taken) == [State.WRITING] * 3
        for index in (1, 2):
            writer.page(index)[:] = content_of(make_node(1))[index]
    assert third.nodes() == [StoredNode(make_node(1), taken)]
    assert (read(third, make_node(1), taken) == content_of(make_node(1))).all()


def test_a_refused_writer_keeps_no_page(arena, opened, tmp_path):
    """Neither those that were free, nor, once the first writer is done, those that it was refused for."""
    other = opened()
    first = hand_out(NODE, 1)
    refused = Pages((20, 21, first.numbers[0]), 3)
    with arena.writing(NODE, first) as writer:
        for index, page in enumerate(content_of(NODE)):
            writer.page(index)[:] = page
        with pytest.raises(PagesTaken):
            write(other, make_node(1), refused)
        assert states(tmp_path, refused) == [State.FREE, State.FREE, State.WRITING]
        write(other, make_node(2), Pages((20, 21, 22), 2))
    assert held(other) == {NODE.key, make_node(2).key}
    for stored in other.nodes():
        other.drop(stored.node.key, stored.pages)
    write(other, make_node(1), refused)
    assert arena.nodes() == [StoredNode(make_node(1), refused)]


def test_a_copy_that_a_refused_writer_gave_up_is_replaced_under_the_next_stamp(arena, opened):
    """The first writer publishes a node whose pages the controller has handed out again: nobody will drop it."""
    other = opened()
    with arena.writing(NODE, hand_out(NODE, 1)) as writer:
        with pytest.raises(PagesTaken):
            write(other, make_node(1), Pages(hand_out(NODE).numbers, 2))
        for index, page in enumerate(content_of(NODE)):
            writer.page(index)[:] = page
    again = Pages(hand_out(NODE).numbers, 3)
    write(other, make_node(1), again)
    assert arena.nodes() == [StoredNode(make_node(1), again)]
    assert (read(arena, make_node(1), again) == content_of(make_node(1))).all()


def test_two_instances_race_for_the_same_pages(arena, opened):
    """Whatever is read holds what was written under its stamp, and at the end every page is free or whole."""
    stamps = iter(range(1, 400))
    handed_out: list[Pages] = []
    allocator, stop, wrong = threading.Lock(), threading.Event(), []

    def keep_writing(tier: HostArena) -> None:
        while True:
            with allocator:
                stamp = next(stamps, None)
                if stamp is None:
                    return
                pages = Pages(tuple((stamp + step) % 5 for step in range(3)), stamp)
                handed_out.append(pages)
            with suppress(PagesTaken):
                write(tier, make_node(stamp % 7), pages, np.full((3, PAGE_BYTES), stamp % 251, np.uint8))

    def keep_reading(tier: HostArena) -> None:
        while not stop.is_set():
            for pages in handed_out[-4:]:
                with suppress(KvMissing, KvBroken):
                    if (read(tier, make_node(pages.stamp % 7), pages) != pages.stamp % 251).any():
                        wrong.append(pages)

    other = opened()
    writers = [threading.Thread(target=keep_writing, args=(tier,)) for tier in (arena, other, other)]
    readers = [threading.Thread(target=keep_reading, args=(tier,)) for tier in (arena, other)]
    for thread in (*writers, *readers):
        thread.start()
    for thread in writers:
        thread.join()
    stop.set()
    for thread in readers:
        thread.join()
    assert wrong == []
    for tier in (arena, other):
        for stored in tier.nodes():
            assert (read(tier, stored.node, stored.pages) == stored.pages.stamp % 251).all()
    check_tier(opened())


def states(folder, pages: Pages) -> list[int]:
    """The states of these pages, out of the arena's file."""
    data = (folder / "kv.arena").read_bytes()
    return [data[4096 * (1 + number)] for number in pages.numbers]
