"""Which blocks have a node of a request whose layers attend to all tokens and to a window."""

import pytest

pytest.importorskip("vllm")

from generator.connector.scheduler.request_blocks import NULL_BLOCK, PlacedDocuments, RequestBlocks
from generator.connector.step_jobs import Purge
from protocol.kv import KvNode, PageGroup, Paging, with_adapter

PAGING = Paging(4, (PageGroup(), PageGroup(6)))
FIRST = KvNode("first", "tenant", ("a",), 0, 10)
SECOND = KvNode("second", "tenant", ("a", "b"), 10, 8)


@pytest.fixture
def blocks() -> RequestBlocks:
    """After 18 tokens: the first two blocks in front of the window are gone."""
    blocks = RequestBlocks(PAGING)
    blocks.replace([[11, 12, 13], [NULL_BLOCK, 22, 23]])
    blocks.extend([[14, 15], [24, 25]])
    return blocks


def test_a_node_has_the_blocks_of_its_windows_once_they_are_kept(blocks):
    assert blocks.of_node(FIRST) is None
    assert blocks.window_of(FIRST) == {3: 22, 4: 23}
    blocks.windows["first"] = (22, 23)
    assert blocks.of_node(FIRST) == (11, 12, 13, 22, 23)
    blocks.windows["second"] = tuple(blocks.window_of(SECOND).values())
    assert blocks.of_node(SECOND) == (13, 14, 15, 24, 25)


def test_what_the_request_never_had_is_missing(blocks):
    blocks.replace([[11, 12, 13, 14], [NULL_BLOCK, NULL_BLOCK, NULL_BLOCK, 24]])
    assert blocks.window_of(FIRST) == {3: NULL_BLOCK, 4: NULL_BLOCK}
    assert blocks.window_of(SECOND) == {3: 24, 4: NULL_BLOCK}
    blocks.windows["second"] = (24, 25)
    assert blocks.of_node(SECOND) is None


def test_states_are_no_blocks_to_keep_but_to_copy():
    blocks = RequestBlocks(Paging(4, (PageGroup(), PageGroup(1, states=True), PageGroup(6))))
    blocks.replace([[11, 12, 13], [NULL_BLOCK, NULL_BLOCK, 23], [NULL_BLOCK, 32, 33]])
    assert blocks.window_of(FIRST) == {4: 32, 5: 33}
    assert blocks.states_of(FIRST) == {3: 23}
    blocks.windows["first"] = (40, 32, 33)
    assert blocks.of_node(FIRST) == (11, 12, 13, 40, 32, 33)


def test_windows_outlive_the_blocks(blocks):
    blocks.windows["first"] = (22, 23)
    blocks.clear()
    assert blocks.groups == [[], []]
    assert list(blocks) == []
    assert blocks.of_node(FIRST) is None
    blocks.replace([[31, 32, 33], [NULL_BLOCK] * 3])
    assert blocks.of_node(FIRST) == (31, 32, 33, 22, 23)


def test_blocks_behind_a_token_are_those_that_have_any_token_behind_it(blocks):
    assert list(blocks.after(0)) == [11, 12, 13, 14, 15, 22, 23, 24, 25]
    assert list(blocks.after(10)) == [13, 14, 15, 23, 24, 25]
    assert list(blocks.after(20)) == []


@pytest.mark.parametrize(
    ("contents", "first"), [({"a"}, 0), ({"b"}, 10), ({"c"}, 0), ({"other"}, None)], ids=["a", "b", "question", "other"]
)
def test_documents_are_purged_from_the_first_one_on(contents, first):
    """A document behind those that have nodes may stand anywhere."""
    purge = Purge(1, {"tenant": frozenset(contents)}, ())
    documents = PlacedDocuments("tenant", ("a", "b", "c"), (FIRST, SECOND))
    assert documents.purged_from(purge) == first
    # KV that an adapter has computed is the tenant's, too.
    assert documents._replace(namespace=with_adapter("tenant", "ab" * 16)).purged_from(purge) == first
    assert documents._replace(namespace=with_adapter("other", "ab" * 16)).purged_from(purge) is None
    assert documents.tokens == 18
