"""Tests of the tier contract (generator/tiers/base.py), which every implementation runs."""

import threading
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from example_counts import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from page_target import MemoryBlocks
from tier_checks import check_tier, used_bytes

from generator.tiers.base import KvBroken, KvMissing, KvTier, TierError
from protocol.kv import HeldNode, KvNode, Pages, Paging

FINGERPRINT = "weights-1"
PAGE_TOKENS = 16
PAGE_BYTES = 5000
"""Not a multiple of any alignment of the tiers."""
NODES = 12


def make_node(number: int, prefix_tokens: int = 20, tokens: int = 40) -> KvNode:
    """A node of three pages by default, of which it shares the first and the last with its neighbours."""
    return KvNode(f"{number * 37 % 256:02x}{number:062x}", "tenant", ("system", f"doc{number}"), prefix_tokens, tokens)


def page_count(node: KvNode) -> int:
    return Paging(PAGE_TOKENS).page_count(node.prefix_tokens, node.tokens)


def content_of(node: KvNode, version: int = 0) -> np.ndarray:
    seed = [int(node.key[2:], 16), version]
    return np.random.default_rng(seed).integers(0, 256, (page_count(node), PAGE_BYTES), dtype=np.uint8)


def hand_out(node: KvNode, stamp: int | None = None) -> Pages:
    """Pages of an arena, different for every node of these tests, in descending order, under a stamp of their own."""
    number = int(node.key[2:], 16)
    numbers = range(4 * number + page_count(node) - 1, 4 * number - 1, -1)
    return Pages(tuple(numbers), number + 1 if stamp is None else stamp)


ARENA_PAGES = 4 * NODES


def write(tier: KvTier, node: KvNode, pages: Pages | None = None, content: np.ndarray | None = None) -> None:
    content = content_of(node) if content is None else content
    with tier.writing(node, pages or hand_out(node)) as writer:
        for index, page in enumerate(content):
            writer.page(index)[:] = page


def write_some(
    tier: KvTier, node: KvNode, indexes: list[int], error: BaseException | None = None, pages: Pages | None = None
) -> None:
    """Fill these pages with content that must never be published; then raise the error, if one is given."""
    with tier.writing(node, pages or hand_out(node)) as writer:
        for index in indexes:
            writer.page(index)[:] = 7
        if error is not None:
            raise error


def read(tier: KvTier, node: KvNode, pages: Pages | None = None, indexes=None) -> np.ndarray:
    with tier.reading(node.key, pages or hand_out(node)) as reader:
        wanted = range(page_count(node)) if indexes is None else indexes
        return np.array([reader.page(index).copy() for index in wanted])


def held(tier: KvTier) -> set[str]:
    return {stored.node.key for stored in tier.nodes()}


steps_of_tiers = st.lists(
    st.tuples(st.sampled_from(["write", "fail", "drop", "reopen"]), st.integers(0, 3)), max_size=14
)


class TierContract:
    """Tests for all tiers. Subclasses define ``open_tier``, which opens the tier in a folder that may have content."""

    def open_tier(self, folder: Path) -> KvTier:
        raise NotImplementedError

    @pytest.fixture
    def tier(self, tmp_path):
        tier = self.open_tier(tmp_path)
        yield tier
        check_tier(tier)
        tier.close()

    def test_a_node_that_was_never_written_is_missing(self, tier):
        node = make_node(0)
        assert not tier.has(node.key, hand_out(node))
        assert not tier.has(node.key, None)
        with pytest.raises(KvMissing), tier.reading(node.key, hand_out(node)):
            pass
        assert tier.nodes() == []
        assert used_bytes(tier) == 0

    def test_dropping_a_missing_copy_does_nothing(self, tier):
        tier.drop(make_node(0).key, hand_out(make_node(0)))
        tier.drop(make_node(0).key, None)

    def test_closing_twice_does_nothing(self, tmp_path):
        tier = self.open_tier(tmp_path)
        tier.close()
        tier.close()

    def test_a_copy_exists_if_and_only_if_writing_succeeded(self, tier):
        try:
            write(tier, make_node(0))
        except TierError:
            assert not tier.has(make_node(0).key, hand_out(make_node(0)))
        else:
            assert tier.has(make_node(0).key, hand_out(make_node(0)))


class KeepingTierContract(TierContract):
    """Tests for the tiers that have capacity."""

    @pytest.mark.parametrize(
        ("prefix", "tokens", "pages"), [(0, 16, 1), (0, 17, 2), (15, 2, 2), (16, 1, 1), (20, 40, 3)]
    )
    def test_pages_are_read_as_they_were_written(self, tier, prefix, tokens, pages):
        node = make_node(0, prefix, tokens)
        write(tier, node)
        assert page_count(node) == pages
        assert (read(tier, node) == content_of(node)).all()

    def test_pages_are_read_in_any_order(self, tier):
        node = make_node(0)
        write(tier, node)
        for indexes in ([2], [2, 0], [1, 1]):
            assert (read(tier, node, indexes=indexes) == content_of(node)[indexes]).all()

    @pytest.mark.parametrize("index", [-1, 3])
    def test_reading_a_page_beyond_the_last_raises(self, tier, index):
        write(tier, make_node(0))
        with pytest.raises(IndexError):
            read(tier, make_node(0), indexes=[index])

    @pytest.mark.parametrize("reachable", [True, False])
    @pytest.mark.parametrize(("first", "blocks"), [(0, (5, 1, 3)), (1, (2, 4)), (2, (0,)), (1, ())])
    def test_pages_are_loaded_into_their_blocks_and_no_others(self, tier, first, blocks, reachable):
        node = make_node(0)
        write(tier, node)
        target = MemoryBlocks(6, (1800, 8, 3192), reachable)
        before = [target.page(block) for block in range(6)]
        with tier.reading(node.key, hand_out(node)) as reader:
            reader.load(first, blocks, target)
        expected = dict(zip(blocks, content_of(node)[first:], strict=False))
        for block in range(6):
            assert (target.page(block) == expected.get(block, before[block])).all()

    @pytest.mark.parametrize(("first", "blocks"), [(3, (0,)), (-1, (0,)), (2, (0, 1))])
    def test_loading_a_page_beyond_the_last_raises(self, tier, first, blocks):
        node = make_node(0)
        write(tier, node)
        with tier.reading(node.key, hand_out(node)) as reader, pytest.raises(IndexError):
            reader.load(first, blocks, MemoryBlocks(2, (PAGE_BYTES,)))

    def test_nodes_lists_what_is_published(self, tier):
        nodes = [make_node(number) for number in range(3)]
        for node in nodes:
            write(tier, node)
        assert {stored.node for stored in tier.nodes()} == set(nodes)
        assert used_bytes(tier) >= 9 * PAGE_BYTES
        stored = next(stored for stored in tier.nodes() if stored.node == nodes[1])
        assert stored.held == HeldNode("tenant", ("system", "doc1"), 40, stored.pages)
        assert (read(tier, nodes[1], stored.pages) == content_of(nodes[1])).all()

    def test_a_copy_is_published_at_the_end_of_writing(self, tier):
        node = make_node(0)
        with tier.writing(node, hand_out(node)) as writer:
            for index, page in enumerate(content_of(node)):
                writer.page(index)[:] = page
            assert not tier.has(node.key, hand_out(node))
            assert tier.nodes() == []
            with pytest.raises(KvMissing), tier.reading(node.key, hand_out(node)):
                pass
        assert tier.has(node.key, hand_out(node))

    def test_an_error_while_writing_is_raised_and_leaves_nothing(self, tier):
        node = make_node(0)
        for error in (OSError("the caller's error"), KeyboardInterrupt()):
            with pytest.raises(type(error)):
                write_some(tier, node, [0, 1], error)
            assert not tier.has(node.key, hand_out(node))
            assert used_bytes(tier) == 0
        write(tier, node)
        assert (read(tier, node) == content_of(node)).all()

    def test_writing_too_few_pages_raises_and_leaves_nothing(self, tier):
        node = make_node(0)
        with pytest.raises(ValueError, match="2 of 3 pages"):
            write_some(tier, node, [0, 1])
        assert not tier.has(node.key, hand_out(node))

    @pytest.mark.parametrize("indexes", [[1], [0, 0], [0, 2], [0, 1, 2, 3], [-1]])
    def test_writing_pages_out_of_order_raises(self, tier, indexes):
        node = make_node(0)
        with pytest.raises(ValueError, match="is next"):
            write_some(tier, node, indexes)
        assert not tier.has(node.key, hand_out(node))

    def test_writing_a_copy_again_changes_nothing(self, tier):
        node = make_node(0)
        write(tier, node)
        with tier.reading(node.key, hand_out(node)) as reader:
            assert reader.node == node
            first = reader.page(0).copy()
            write(tier, node, content=content_of(node, version=1))
            with pytest.raises(OSError, match="midway"):
                write_some(tier, node, [0], OSError("midway"))
            assert (reader.page(0) == first).all()
        assert (read(tier, node) == content_of(node)).all()
        assert held(tier) == {node.key}

    def test_dropping_a_copy_leaves_the_others(self, tier):
        gone, stays = make_node(0), make_node(1)
        write(tier, gone)
        write(tier, stays)
        before = used_bytes(tier)
        for _ in range(2):
            tier.drop(gone.key, hand_out(gone))
            assert not tier.has(gone.key, hand_out(gone))
            assert held(tier) == {stays.key}
            assert used_bytes(tier) == before / 2
        assert (read(tier, stays) == content_of(stays)).all()

    def test_a_reader_of_a_dropped_copy_gets_what_was_written_or_an_error(self, tier):
        node = make_node(0)
        write(tier, node)
        with suppress(KvBroken), tier.reading(node.key, hand_out(node)) as reader:
            tier.drop(node.key, hand_out(node))
            pages = np.array([reader.page(index).copy() for index in range(3)])
            assert (pages == content_of(node)).all()

    def test_reopening_finds_what_was_published_and_nothing_else(self, tier, tmp_path):
        done, dropped, failed = (make_node(number) for number in range(3))
        write(tier, done)
        write(tier, dropped)
        tier.drop(dropped.key, hand_out(dropped))
        with suppress(OSError):
            write_some(tier, failed, [0], OSError())
        again = self.open_tier(tmp_path)
        assert [stored.node for stored in again.nodes()] == [done]
        assert (read(again, done) == content_of(done)).all()
        check_tier(again)
        again.close()

    def test_threads_read_while_one_writes(self, tier):
        stop, wrong = threading.Event(), []
        write(tier, make_node(0))

        def keep_reading():
            while not stop.is_set():
                for number in range(NODES):
                    with suppress(KvMissing):
                        if not (read(tier, make_node(number)) == content_of(make_node(number))).all():
                            wrong.append(number)

        threads = [threading.Thread(target=keep_reading) for _ in range(3)]
        for thread in threads:
            thread.start()
        try:
            for number in range(1, NODES):
                write(tier, make_node(number))
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        assert wrong == []
        assert len(held(tier)) == NODES

    # Each tier's tests run it, with examples that hypothesis shares among them.
    @given(steps=steps_of_tiers)
    @settings(max_examples=examples(25), suppress_health_check=[HealthCheck.differing_executors])
    def test_a_tier_behaves_like_a_dictionary(self, steps):
        """A write that is not a repetition has a new stamp and new content."""
        with TemporaryDirectory() as folder:
            tier = self.open_tier(Path(folder))
            model: dict[int, tuple[Pages, int]] = {}
            for stamp, (step, number) in enumerate(steps, start=1):
                node, there = make_node(number), number in model
                if step == "write":
                    pages, version = model.setdefault(number, (hand_out(node, stamp), stamp))
                    write(tier, node, pages, content_of(node, version))
                elif step == "fail" and not there:
                    with suppress(OSError):
                        write_some(tier, node, [0], OSError(), hand_out(node, stamp))
                elif step == "drop":
                    pages, _ = model.pop(number, (hand_out(node, stamp), 0))
                    tier.drop(node.key, pages)
                elif step == "reopen":
                    tier.close()
                    tier = self.open_tier(Path(folder))
                _compare(tier, model)
            tier.close()


def _compare(tier: KvTier, model: dict[int, tuple[Pages, int]]) -> None:
    check_tier(tier)
    assert held(tier) == {make_node(number).key for number in model}
    for number in range(4):
        node = make_node(number)
        pages, version = model.get(number, (hand_out(node), 0))
        assert tier.has(node.key, pages) == (number in model)
        if number in model:
            assert (read(tier, node, pages) == content_of(node, version)).all()
