"""Which pages go into which blocks: any token that a plan loads comes from a page that holds it."""

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("vllm")

from generator.connector.messages import RequestOrders, Resolved
from generator.connector.request_state import Execution, Offer
from generator.connector.step_jobs import Load, Piece
from protocol.kv import pages_spanned
from protocol.plans import PlannedNode
from protocol.tiers import Tier

PAGE = 4
LENGTHS = st.lists(st.integers(1, 14), min_size=1, max_size=6)
TIERS = [Tier.GPU, Tier.HOST, Tier.DISK]


def execution(lengths, sources) -> Execution:
    nodes = tuple(
        PlannedNode(f"k{index}", tokens, source, Tier.GPU)
        for index, (tokens, source) in enumerate(zip(lengths, sources, strict=True))
    )
    path = tuple(f"c{index}" for index in range(len(lengths)))
    total = sum(lengths) + 3
    request = SimpleNamespace(num_tokens=total)
    made = Execution(request, RequestOrders("q", True, "n", path, nodes), PAGE)
    made.blocks = [100 + block for block in range(-(-total // PAGE))]
    return made


@given(LENGTHS, st.data())
def test_every_token_that_is_loaded_lies_in_the_page_that_its_block_comes_from(lengths, data):
    cached = data.draw(st.integers(1, len(lengths)))
    sources = [data.draw(st.sampled_from(TIERS)) if index < cached else None for index in range(len(lengths))]
    made = execution(lengths, sources)
    end = sum(lengths[:cached]) - data.draw(st.integers(0, 1))
    local = data.draw(st.integers(0, max(0, end - 1) // PAGE)) * PAGE
    made.offer = Offer(local, end, made.loadable(local))
    held = {
        node.key: tuple(1000 + page for page in pages_spanned(node.prefix_tokens, node.tokens, PAGE))
        for node in made.nodes
    }
    comes_from = {}
    for piece in made.pieces(held):
        node = next(node for node in made.nodes if node.key == piece.key)
        for offset, block in enumerate(piece.blocks):
            page = pages_spanned(node.prefix_tokens, node.tokens, PAGE).start + piece.first + offset
            assert block not in comes_from, "a block is filled twice"
            assert made.blocks[page] == block, "a page belongs into the block of its own tokens"
            comes_from[block] = node
            if piece.tier is Tier.GPU:
                assert piece.held[offset] == 1000 + page
    for token in range(local, end):
        node = comes_from[made.blocks[token // PAGE]]
        assert token < node.prefix_tokens + node.tokens, "the page ends before this token"


@given(LENGTHS)
def test_a_missing_copy_ends_what_can_be_loaded(lengths):
    made = execution(lengths, [Tier.HOST] * len(lengths))
    assert made.loadable(0) == list(range(len(lengths)))
    made.missing.add((f"k{len(lengths) // 2}", Tier.HOST))
    assert made.loadable(0) == list(range(len(lengths) // 2))


def test_what_the_engine_found_by_itself_need_not_be_loaded():
    made = execution([5, 7, 3], [Tier.HOST, Tier.DISK, None])
    assert made.loadable(4) == [0, 1]
    assert made.loadable(8) == [1]
    assert made.loadable(12) == []


def test_tokens_are_counted_by_where_they_came_from():
    made = execution([6, 7, 5], [Tier.HOST, Tier.DISK, None])
    made.local, made.cached = 4, 13
    assert made.resolved() == Resolved({Tier.GPU: 4, Tier.HOST: 2, Tier.DISK: 7}, 0.0)
    made.fall_back(8)
    assert made.resolved().loaded == {Tier.GPU: 4, Tier.HOST: 2, Tier.DISK: 2}


def test_what_was_good_before_stays_good():
    made = execution([6, 7, 5], [Tier.HOST, Tier.DISK, None])
    made.cached = 13
    made.fall_back(8)
    made.fall_back(12)
    assert made.cached == 8


@given(LENGTHS, st.integers(1, 5), st.data())
def test_shares_of_a_load_are_all_of_it_and_each_page_once(lengths, count, data):
    sources = [data.draw(st.sampled_from(TIERS)) for _ in lengths]
    pieces = tuple(
        Piece(f"k{index}", source, data.draw(st.integers(0, 3)), tuple(range(100 * index, 100 * index + length)))
        for index, (length, source) in enumerate(zip(lengths, sources, strict=True))
    )
    load = Load("r", pieces, True)
    shares = load.shares(count)

    def pages(load):
        return [
            (piece.key, piece.tier, piece.first + offset, block)
            for piece in load.pieces
            for offset, block in enumerate(piece.blocks)
        ]

    assert [page for share in shares for page in pages(share)] == pages(load)
    sizes = [len(pages(share)) for share in shares]
    assert len(shares) == min(count, sum(lengths))
    assert max(sizes) - min(sizes) <= 1


def test_a_load_of_nothing_is_one_share_that_somebody_ends():
    load = Load("r", (), True)
    assert load.shares(3) == [load]
