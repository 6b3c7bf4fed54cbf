"""Reading from a server that works, and from one whose copies change or break."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from example_counts import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from page_target import MemoryBlocks
from peer_loads import NODE, PAGES, load, soon
from peer_nodes import (
    FINGERPRINT,
    KEY,
    PAGE_BYTES,
    InterruptedArena,
    content_of,
    make_node,
    open_arena,
    write,
)
from xxhash import xxh3_64_intdigest

from generator.peers import page_client, page_server
from generator.peers.page_client import PeerPages, RemoteReader
from generator.peers.page_server import PageServer
from generator.peers.wire import PeerUnreachable, Reason
from generator.tiers.base import KvBroken, KvMissing, Page
from generator.tiers.disk import DiskTier
from protocol.kv import KvNode, Pages
from protocol.tiers import Tier


@pytest.mark.parametrize("slab_bytes", [(PAGE_BYTES,), (1800, 8, 3192), (1, 4999), (2,) * 2500])
@pytest.mark.parametrize("reachable", [True, False])
@pytest.mark.parametrize(("first", "blocks"), [(0, (5, 1, 3)), (1, (2, 4)), (2, (0,)), (1, ())])
@pytest.mark.parametrize("tier", [Tier.HOST, Tier.DISK])
def test_pages_are_loaded_into_their_blocks_and_no_others(
    arena: InterruptedArena,
    disk: DiskTier,
    server: PageServer,
    client: PeerPages,
    tier: Tier,
    first: int,
    blocks: tuple[int, ...],
    reachable: bool,
    slab_bytes: tuple[int, ...],
) -> None:
    write(arena if tier is Tier.HOST else disk, NODE, PAGES)
    target = MemoryBlocks(6, slab_bytes, reachable)
    before = [target.page(block) for block in range(6)]
    with client.reading(server.address, NODE.key, tier, PAGES, soon()) as reader:
        reader.load(first, blocks, target)
    expected = dict(zip(blocks, content_of(NODE)[first:], strict=False))
    for block in range(6):
        assert (target.page(block) == expected.get(block, before[block])).all()


def test_pages_that_cannot_be_received_in_place_are_written_in_batches(
    arena: InterruptedArena, server: PageServer, connect: Callable[..., PeerPages], monkeypatch: pytest.MonkeyPatch
) -> None:
    node, pages = make_node(2, 10), Pages(tuple(range(10, 20)), 1)
    write(arena, node, pages)
    monkeypatch.setattr(page_client, "_BUFFER_BYTES", 4 * PAGE_BYTES + 1)
    target = MemoryBlocks(10, (PAGE_BYTES,), reachable=False)
    with connect().reading(server.address, node.key, Tier.HOST, pages, soon()) as reader:
        reader.load(0, range(9, -1, -1), target)
        reader.load(8, [9, 8], target)
    assert target.written == [4, 4, 2, 2]
    assert [block for block in range(8) if (target.page(block) != content_of(node)[9 - block]).any()] == []
    assert (target.page(9) == content_of(node)[8]).all()
    assert (target.page(8) == content_of(node)[9]).all()


def test_single_pages_are_read_in_any_order(arena: InterruptedArena, server: PageServer, client: PeerPages) -> None:
    write(arena, NODE, PAGES)
    with client.reading(server.address, NODE.key, Tier.HOST, PAGES, soon()) as reader:
        for index in (2, 0, 0, 1):
            assert (page_of(reader, index) == content_of(NODE)[index]).all()


def test_readings_share_a_buffer_one_after_the_other(
    arena: InterruptedArena, server: PageServer, client: PeerPages
) -> None:
    write(arena, NODE, PAGES)

    def reading() -> AbstractContextManager[RemoteReader]:
        return client.reading(server.address, NODE.key, Tier.HOST, PAGES, soon())

    target = MemoryBlocks(2, (PAGE_BYTES,), reachable=False)
    with reading() as first, reading() as second:
        first.load(0, [0], target)
        second.load(1, [1], target)
    assert all((target.page(index) == content_of(NODE)[index]).all() for index in range(2))
    buffers = {id(buffer) for buffer in client._buffers._spare}
    assert len(buffers) == 2
    with reading() as third:
        third.load(2, [0], target)
    assert {id(buffer) for buffer in client._buffers._spare} == buffers


def page_of(reader: RemoteReader, index: int) -> Page:
    """One page that a reader loads."""
    target = MemoryBlocks(1, (PAGE_BYTES,))
    reader.load(index, [0], target)
    return target.page(0)


@pytest.mark.parametrize(("first", "blocks"), [(3, (0,)), (-1, (0,)), (2, (0, 1)), (1 << 62, (0,))])
@pytest.mark.parametrize("tier", [Tier.HOST, Tier.DISK])
def test_loading_a_page_beyond_the_last_raises(
    arena: InterruptedArena,
    disk: DiskTier,
    server: PageServer,
    client: PeerPages,
    tier: Tier,
    first: int,
    blocks: tuple[int, ...],
) -> None:
    write(arena if tier is Tier.HOST else disk, NODE, PAGES)
    with client.reading(server.address, NODE.key, tier, PAGES, soon()) as reader:
        with pytest.raises(IndexError):
            reader.load(first, blocks, MemoryBlocks(2, (PAGE_BYTES,)))
        assert (page_of(reader, 2) == content_of(NODE)[2]).all()


@pytest.mark.parametrize(
    ("key", "pages", "tier"),
    [
        (make_node(9).key, PAGES, Tier.HOST),
        (make_node(9).key, None, Tier.DISK),
        (NODE.key, Pages(PAGES.numbers, 2), Tier.HOST),
        (NODE.key, Pages((7, 3), 1), Tier.HOST),
        (NODE.key, Pages((-1, 1 << 40), 1 << 63), Tier.HOST),
        (NODE.key, Pages((7, 3, 5), -1), Tier.HOST),
        (NODE.key, None, Tier.HOST),
        (NODE.key, PAGES, Tier.GPU),
    ],
)
def test_a_copy_that_the_peer_lacks_is_missing(
    arena: InterruptedArena, server: PageServer, client: PeerPages, key: str, pages: Pages | None, tier: Tier
) -> None:
    write(arena, NODE, PAGES)
    with client.reading(server.address, key, tier, pages, soon()) as reader, pytest.raises(KvMissing):
        page_of(reader, 0)
    assert (load(client, server.address) == content_of(NODE)).all()


def test_a_missing_copy_of_very_many_pages_is_missing(server: PageServer, client: PeerPages) -> None:
    pages = Pages(tuple(range(70_000, 270_000)), 1)
    reading = client.reading(server.address, NODE.key, Tier.HOST, pages, soon())
    with reading as reader, pytest.raises(KvMissing, match=NODE.key):
        page_of(reader, 0)


def test_a_copy_that_is_broken_at_the_peer_is_broken(
    disk: DiskTier, server: PageServer, client: PeerPages, tmp_path: Path
) -> None:
    write(disk, NODE)
    (file,) = (path for path in tmp_path.rglob("*") if NODE.key in path.name)
    with file.open("r+b") as opened:
        opened.seek(-1, 2)
        opened.write(bytes([content_of(NODE)[-1][-1] ^ 1]))
    with pytest.raises(KvBroken) as broken:
        load(client, server.address, tier=Tier.DISK)
    assert broken.value.damage == "checksum"
    with pytest.raises(KvMissing):
        load(client, server.address, tier=Tier.DISK)


@pytest.mark.parametrize("at", [0, 1, 2])
def test_a_copy_that_is_overwritten_while_it_is_sent_is_broken(
    arena: InterruptedArena, server: PageServer, client: PeerPages, at: int
) -> None:
    write(arena, NODE, PAGES)

    def overwrite(index: int) -> None:
        if index == at:
            write(arena, make_node(2), Pages(PAGES.numbers, 2))

    arena.interrupt = overwrite
    with pytest.raises(KvBroken) as broken:
        load(client, server.address)
    assert broken.value.damage == "changed"
    arena.interrupt = lambda _: None
    assert (load(client, server.address, make_node(2), Pages(PAGES.numbers, 2)) == content_of(make_node(2))).all()


def test_a_page_that_is_overwritten_after_its_checksum_was_taken_is_not_used(
    arena: InterruptedArena, server: PageServer, client: PeerPages, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(arena, NODE, PAGES)

    def take_and_overwrite(data: memoryview) -> int:
        checksum = xxh3_64_intdigest(data)
        monkeypatch.undo()
        write(arena, make_node(2), Pages(PAGES.numbers, 2))
        return checksum

    monkeypatch.setattr(page_server, "xxh3_64_intdigest", take_and_overwrite)
    with pytest.raises(PeerUnreachable) as failed:
        load(client, server.address)
    assert failed.value.reason is Reason.DAMAGED


def test_a_copy_that_is_dropped_while_it_is_sent_is_broken(
    arena: InterruptedArena, server: PageServer, client: PeerPages
) -> None:
    write(arena, NODE, PAGES)
    arena.interrupt = lambda _: arena.drop(NODE.key, PAGES)
    with pytest.raises(KvBroken):
        load(client, server.address)
    with pytest.raises(KvMissing):
        load(client, server.address)


def test_no_load_is_of_two_nodes_while_pages_are_handed_out_again_and_again(
    arena: InterruptedArena, server: PageServer, client: PeerPages
) -> None:
    nodes = [make_node(number) for number in range(1, 60)]
    write(arena, nodes[0], Pages(PAGES.numbers, 1))
    latest, right, wrong = [0], [0], []

    def keep_loading() -> None:
        while latest[0] < len(nodes) - 1 or not right[0]:
            at = latest[0]
            try:
                loaded = load(client, server.address, nodes[at], Pages(PAGES.numbers, at + 1))
            except (KvMissing, KvBroken, PeerUnreachable):
                continue
            right[0] += 1
            if (loaded != content_of(nodes[at])).any():
                wrong.append(at)

    threads = [threading.Thread(target=keep_loading) for _ in range(2)]
    for thread in threads:
        thread.start()
    for at in range(1, len(nodes)):
        write(arena, nodes[at], Pages(PAGES.numbers, at + 1))
        latest[0] = at
    for thread in threads:
        thread.join()
    assert wrong == []


def test_threads_share_a_client(arena: InterruptedArena, disk: DiskTier, server: PageServer, client: PeerPages) -> None:
    nodes = {make_node(number): Pages((3 * number, 3 * number + 1, 3 * number + 2), number) for number in range(1, 9)}
    for node, pages in nodes.items():
        write(arena, node, pages)
        write(disk, node)

    def right(node: KvNode, tier: Tier) -> bool:
        return bool((load(client, server.address, node, nodes[node], tier) == content_of(node)).all())

    with ThreadPoolExecutor(6) as threads:
        loads = [
            threads.submit(right, node, tier) for node in nodes for tier in (Tier.HOST, Tier.DISK) for _ in range(5)
        ]
        assert [each.result() for each in loads] == [True] * len(loads)


def test_nothing_is_sent_before_the_first_read(client: PeerPages) -> None:
    with client.reading("127.0.0.1:1", NODE.key, Tier.HOST, PAGES, soon()) as reader:
        reader.load(0, (), MemoryBlocks(1, (PAGE_BYTES,)))


@given(
    page_bytes=st.integers(1, 9000),
    count=st.integers(1, 40),
    cut=st.floats(0, 1),
    reachable=st.booleans(),
    data=st.data(),
)
@settings(max_examples=examples(25), deadline=None)
def test_pages_of_any_size_and_number_arrive(
    page_bytes: int, count: int, cut: float, reachable: bool, data: st.DataObject
) -> None:
    first = data.draw(st.integers(0, count - 1))
    node, pages = make_node(1, count), Pages(tuple(reversed(range(count))), 3)
    part = int(cut * page_bytes)
    target = MemoryBlocks(count - first, (part, page_bytes - part), reachable)
    with TemporaryDirectory() as folder, ExitStack() as closing:
        arena = open_arena(Path(folder), page_bytes, count)
        closing.callback(arena.close)
        write(arena, node, pages, page_bytes)
        server = PageServer({Tier.HOST: arena}, FINGERPRINT, page_bytes, 0, KEY, "127.0.0.1", 0)
        closing.callback(server.close)
        client = PeerPages(FINGERPRINT, page_bytes, 0, KEY, 30)
        closing.callback(client.close)
        with client.reading(server.address, node.key, Tier.HOST, pages, soon()) as reader:
            reader.load(first, range(count - first), target)
    loaded = [target.page(block) for block in range(count - first)]
    assert (np.array(loaded) == content_of(node, page_bytes)[first:]).all()
