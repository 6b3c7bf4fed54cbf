"""Which pages go into which blocks: every token that a plan loads comes from a page that holds it."""

from itertools import count
from types import SimpleNamespace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("vllm")

from plan_messages import plan_message
from reads import donor_pages, piece_of

from generator.connector.messages import Prefilled
from generator.connector.scheduler.planned_request import Offer, PlannedRequest
from generator.connector.scheduler.request_blocks import NULL_BLOCK
from generator.connector.step_jobs import BlockCopy, Load, Piece
from protocol.kv import KvNode, KvRead, LostCopy, PageGroup, Pages, Paging, PeerCopy
from protocol.plans import PlannedNode
from protocol.tiers import Tier

PAGE = 4
ALL_TOKENS = Paging(PAGE)
GROUPS = [
    pytest.param((PageGroup(),), id="all tokens"),
    pytest.param((PageGroup(8),), id="a window"),
    pytest.param((PageGroup(), PageGroup(8)), id="all tokens and a window"),
    pytest.param((PageGroup(5), PageGroup(), PageGroup(13)), id="windows of several sizes"),
    pytest.param((PageGroup(0, 2), PageGroup(6)), id="pages of several sizes"),
    pytest.param((PageGroup(), PageGroup(8, 1, True)), id="all tokens and chunks"),
    pytest.param((PageGroup(6, 1, True),), id="chunks that end within pages"),
    pytest.param((PageGroup(), PageGroup(1, states=True)), id="all tokens and states"),
    pytest.param((PageGroup(1, 2, states=True), PageGroup(0, 2), PageGroup(6)), id="states, all tokens and a window"),
]
LENGTHS = st.lists(st.integers(1, 14), min_size=1, max_size=6)
TIERS = [Tier.GPU, Tier.HOST, Tier.DISK]


def state_of(lengths, sources, paging: Paging = ALL_TOKENS, end: int = 0) -> PlannedRequest:
    """The state of a request whose nodes have these lengths and sources.

    Its blocks are numbered from 100 in the first group, from 200 in the next one, and so on. It has computed or loaded
    ``end`` tokens, so that the engine has taken back the blocks in front of windows.
    """
    nodes = tuple(
        PlannedNode(f"k{index}", tokens, source, Tier.GPU)
        for index, (tokens, source) in enumerate(zip(lengths, sources, strict=True))
    )
    path = tuple(f"c{index}" for index in range(len(lengths)))
    total = sum(lengths) + 3
    request = SimpleNamespace(request_id="q", num_tokens=total)
    state = PlannedRequest(request, plan_message("q", "n", path, nodes).plan, path, paging)
    tables = []
    for number, group in enumerate(paging.groups, start=1):
        size = paging.page_tokens * group.times
        gone, blocks = group.first_attended(end) // size, range(-(-total // size))
        tables.append([NULL_BLOCK if block < gone else 100 * number + block for block in blocks])
    state.blocks.replace(tables)
    return state


def no_blocks(count: int) -> list[int]:
    return []


def pages_of(paging: Paging, node: KvNode) -> list[tuple[int, int]]:
    """A node's pages in their order: the group, and the page of the prompt."""
    spans = paging.spans(node.prefix_tokens, node.tokens)
    return [(group, page) for group, span in enumerate(spans) for page in span]


@pytest.mark.parametrize("groups", GROUPS)
@given(LENGTHS, st.data())
def test_every_loaded_token_comes_from_a_page_that_holds_it(groups, lengths, data):
    paging = Paging(PAGE, groups)
    cached = data.draw(st.integers(1, len(lengths)))
    sources = [data.draw(st.sampled_from(TIERS)) if index < cached else None for index in range(len(lengths))]
    end = sum(lengths[:cached]) - (0 if paging.has_states else data.draw(st.integers(0, 1)))
    largest = PAGE * max(group.times for group in groups)
    local = data.draw(st.integers(0, max(0, end - 1) // largest)) * largest
    state = state_of(lengths, sources, paging, end)
    held = {
        node.key: tuple(1000 * number + at for at in range(len(pages_of(paging, node))))
        for number, node in enumerate(state.nodes, start=1)
    }
    state.offer = Offer(local, end, state.loadable(local, held))
    spare = count(10_000)
    load = state.load_of(held, lambda wanted: [next(spare) for _ in range(wanted)])
    comes_from = {}
    for piece in load.pieces:
        node = next(node for node in state.nodes if node.key == piece.source.key)
        for offset, block in enumerate(piece.blocks):
            assert block not in comes_from, "a block is filled twice"
            comes_from[block] = node, *pages_of(paging, node)[piece.first + offset]
    for copy in load.copies:
        assert copy.target not in comes_from, "a block is filled twice"
        number, at = divmod(copy.source, 1000)
        node = state.nodes[number - 1]
        comes_from[copy.target] = node, *pages_of(paging, node)[at]
    assert NULL_BLOCK not in comes_from
    for number, group in enumerate(groups):
        for token in range(max(local, group.first_attended(end)), end):
            at = token // (PAGE * group.times)
            node, own, page = comes_from[state.blocks.groups[number][at]]
            assert (own, page) == (number, at), "a page goes into the block of its own tokens"
            node_end = node.prefix_tokens + node.tokens
            assert token < node_end, "the page ends before this token"
            assert token >= group.first_kept(node_end), "the token had left the window when the page was saved"
    for key, blocks in load.windows.items():
        node = next(node for node in state.nodes if node.key == key)
        windows = [at for at in pages_of(paging, node) if groups[at[0]].window]
        for (group, page), block in zip(windows, blocks, strict=True):
            # Otherwise the engine has found it in its own cache.
            if block in comes_from:
                assert comes_from[block][1:] == (group, page), "the window is filled with other tokens"
            own = block == state.blocks.groups[group][page] and not groups[group].states
            assert own or comes_from[block][0] is node
    kept = {state.nodes[index].key for index in state.offer.nodes if sources[index] is not Tier.GPU}
    assert load.windows.keys() == (kept if paging.has_windows else set())


@given(LENGTHS)
def test_a_missing_copy_ends_what_can_be_loaded(lengths):
    state = state_of(lengths, [Tier.HOST] * len(lengths))
    assert state.loadable(0, ()) == list(range(len(lengths)))
    state.missing.add(LostCopy(f"k{len(lengths) // 2}", Tier.HOST))
    assert state.loadable(0, ()) == list(range(len(lengths) // 2))


def test_a_node_missing_in_the_gpu_tier_ends_what_can_be_loaded():
    state = state_of([5, 7, 3], [Tier.GPU, Tier.GPU, Tier.HOST])
    assert state.loadable(0, {"k0", "k1"}) == [0, 1, 2]
    assert state.loadable(0, {"k0"}) == [0]


def test_what_ends_within_a_node_is_not_offered_where_layers_keep_states():
    with_states = Paging(PAGE, (PageGroup(), PageGroup(1, states=True)))
    for paging, end in ((ALL_TOKENS, 14), (with_states, 12)):
        state = state_of([5, 7, 3], [Tier.HOST] * 3, paging)
        state.request.num_tokens = 15
        assert state.make_offer(0, ()).end == end


def test_states_at_the_end_of_a_block_are_loaded_before_the_step():
    """vLLM moves them into the next block before it lets copies be made."""
    with_states = Paging(PAGE, (PageGroup(), PageGroup(1, states=True)))
    for paging, length, in_background in ((ALL_TOKENS, 8, False), (with_states, 8, True), (with_states, 7, False)):
        state = state_of([length], [Tier.GPU], paging)
        state.make_offer(0, {"k0"})
        assert state.loads_in_background == in_background


def test_the_next_end_of_a_node_that_is_to_be_kept_is_known():
    state = state_of([5, 7, 3], [Tier.GPU, None, Tier.HOST])
    state.request.num_prompt_tokens = 20
    assert [state.tokens_to_node_end(start) for start in (0, 4, 11, 12, 15, 17)] == [12, 8, 1, 3, 0, 0]


def test_tokens_in_the_engines_own_cache_are_not_loaded():
    state = state_of([5, 7, 3], [Tier.HOST, Tier.DISK, None])
    assert state.loadable(4, ()) == [0, 1]
    assert state.loadable(8, ()) == [1]
    assert state.loadable(12, ()) == []


def test_an_offer_leaves_the_last_token_of_the_prompt_to_compute():
    state = state_of([5, 7], [Tier.HOST, Tier.HOST])
    assert state.make_offer(4, ()) == Offer(4, 12, [0, 1])
    state.request.num_tokens = 12
    assert state.make_offer(4, ()) == Offer(4, 11, [0, 1])
    assert state.make_offer(12, ()) == Offer(12, 12, [])


def test_loaded_tokens_are_counted_by_tier():
    state = state_of([6, 7, 5], [Tier.HOST, Tier.DISK, None])
    state.offer = Offer(4, 13, [0, 1])
    state.accepted(9)
    assert state.prefilled() == Prefilled({Tier.GPU: 4, Tier.HOST: 2, Tier.DISK: 7}, 0.0)
    state.limit_cached(8)
    assert state.prefilled().loaded == {Tier.GPU: 4, Tier.HOST: 2, Tier.DISK: 2}


PEER = PeerCopy("elsewhere", ("peer:1",), Tier.HOST, Pages((7, 8), 9))


def with_peer(state: PlannedRequest, index: int) -> PlannedRequest:
    """The state with a node that is read at a peer."""
    nodes = list(state.plan.nodes)
    nodes[index] = msgspec.structs.replace(nodes[index], source=None, peer=PEER)
    state.plan = msgspec.structs.replace(state.plan, nodes=tuple(nodes))
    return state


def test_a_node_at_a_peer_is_loaded_in_the_background():
    state = with_peer(state_of([4, 8, 3], [Tier.GPU, None, None]), 1)
    state.make_offer(0, {"k0"})
    assert state.offer == Offer(0, 12, [0, 1])
    assert state.loads_in_background
    # Only copies at this location may be in the making here.
    assert list(state.copies_offered()) == [("k0", Tier.GPU)]
    load = state.load_of({"k0": (1,)}, no_blocks)
    assert load.pieces == (Piece(state.planned(1), 0, (101, 102)),)
    assert load.pieces[0].copy == LostCopy("k1", Tier.HOST, "elsewhere")
    near, far = load.near_and_far()
    assert (near.pieces, near.copies) == ((), (BlockCopy(1, 100),))
    assert [(part.pieces, part.copies) for part in far] == [(load.pieces, ())]
    state.accepted(12)
    assert state.prefilled().loaded == {Tier.GPU: 4, Tier.HOST: 8}


def test_each_location_is_read_apart():
    other = msgspec.structs.replace(PEER, location="further")
    pieces = [piece_of(key, Tier.HOST, 0, (1,), peer=peer) for key, peer in (("a", PEER), ("b", other), ("c", PEER))]
    donor = donor_pages("d", ("n", "c"), Tier.HOST, 0, 4, 8, peer=other)
    near, far = Load("q", tuple(pieces), donors=(donor,)).near_and_far()
    assert (near.pieces, near.donors) == ((), ())
    assert [([piece.copy.node for piece in part.pieces], [each.copy.node for each in part.donors]) for part in far] == [
        (["a", "c"], []),
        (["b"], ["d"]),
    ]


def test_what_a_peer_did_not_serve_is_not_offered_again():
    state = with_peer(state_of([4, 8], [Tier.HOST, None]), 1)
    # The same node at this location is another copy.
    state.missing.add(LostCopy("k1", Tier.HOST))
    assert state.loadable(0, ()) == [0, 1]
    state.missing.add(LostCopy("k1", Tier.HOST, "elsewhere"))
    assert state.loadable(0, ()) == [0]


def test_a_peer_that_did_not_serve_is_not_asked_for_anything_else():
    state = with_peer(with_peer(state_of([4, 8], [None, None]), 1), 0)
    assert state.loadable(0, ()) == [0, 1]
    state.silent.add("elsewhere")
    assert state.loadable(0, ()) == []


def test_reads_at_peers_are_reported():
    state = state_of([4], [None])
    state.reads.append(KvRead("elsewhere", 8, 0.5))
    assert state.prefilled().reads == (KvRead("elsewhere", 8, 0.5),)


def test_limiting_cached_tokens_never_raises_them():
    state = state_of([6, 7, 5], [Tier.HOST, Tier.DISK, None])
    state.offer = Offer(0, 13, [0, 1])
    state.accepted(13)
    state.limit_cached(8)
    state.limit_cached(12)
    assert state.cached == 8


@given(LENGTHS, st.integers(1, 5), st.data())
def test_split_loads_have_every_page_once(lengths, count, data):
    sources = [data.draw(st.sampled_from(TIERS)) for _ in lengths]
    pieces = tuple(
        piece_of(f"k{index}", source, data.draw(st.integers(0, 3)), tuple(range(100 * index, 100 * index + length)))
        for index, (length, source) in enumerate(zip(lengths, sources, strict=True))
    )
    load = Load("r", pieces, (BlockCopy(1, 2),))
    shares = load.split(count)

    def pages(load):
        return [
            (piece.copy, piece.first + offset, block)
            for piece in load.pieces
            for offset, block in enumerate(piece.blocks)
        ]

    assert [page for share in shares for page in pages(share)] == pages(load)
    assert [copy for share in shares for copy in share.copies] == [BlockCopy(1, 2)]
    sizes = [len(pages(share)) for share in shares]
    assert len(shares) == min(count, sum(lengths))
    assert max(sizes) - min(sizes) <= 1


@given(st.integers(0, 5), st.integers(0, 3), st.integers(1, 4))
def test_split_loads_have_every_donor_once(donated, blocks, threads):
    donors = tuple(donor_pages(f"k{number}", ("", f"c{number}"), Tier.HOST, 0, 0, 9) for number in range(donated))
    load = Load("r", (piece_of("k", Tier.HOST, 0, tuple(range(blocks))),) if blocks else (), donors=donors)
    shares = load.split(threads)
    read = [donor.copy.node for share in shares for donor in share.donors]
    assert sorted(read) == [donor.copy.node for donor in donors]
    assert len(shares) == min(threads, max(donated, blocks, 1))


def test_an_empty_load_is_split_into_one_share():
    load = Load("r", (), (BlockCopy(1, 2),))
    assert load.split(3) == [load]
