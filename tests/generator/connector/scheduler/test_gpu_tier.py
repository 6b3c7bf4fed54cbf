"""The engine does not reuse held blocks until they are released. Tested over vLLM's own block pool."""

import pytest

pytest.importorskip("vllm")

from small_pool import BLOCKS, PAGE, Chain, small_pool
from vllm.v1.core.block_pool import BlockPool

from generator.connector.scheduler.gpu_tier import GpuTier
from protocol.kv import Paging


@pytest.fixture
def pool() -> BlockPool:
    return small_pool()


@pytest.fixture
def tier(pool) -> GpuTier:
    tier = GpuTier(Paging(PAGE))
    tier.bind(pool)
    return tier


def test_a_held_node_keeps_its_blocks_and_no_others(tier, pool):
    chain = Chain(tier, pool, 6, 5)
    assert pool.get_num_free_blocks() == BLOCKS - 1 - 3
    assert tier.blocks(chain.keys[1]) == tuple(chain.blocks[1:3])
    tier.release(chain.keys[1])
    assert pool.get_num_free_blocks() == BLOCKS - 1 - 2
    assert tier.release(chain.keys[0]) == [chain.keys[0]]
    assert pool.get_num_free_blocks() == BLOCKS - 1


def test_releasing_a_node_releases_the_nodes_behind_it(tier, pool):
    chain = Chain(tier, pool, 6, 5, 4)
    assert sorted(tier.release(chain.keys[1])) == chain.keys[1:]
    assert chain.keys[0] in tier
    assert tier.release("unknown") == []


def test_holding_a_node_twice_changes_nothing(tier, pool):
    chain = Chain(tier, pool, 6)
    free = pool.get_num_free_blocks()
    tier.hold(tier.node(chain.keys[0]), None, tier.blocks(chain.keys[0]))
    assert pool.get_num_free_blocks() == free


def test_retained_blocks_outlive_the_node(tier, pool):
    chain = Chain(tier, pool, 8)
    blocks = tier.blocks(chain.keys[0])
    tier.retain(blocks)
    tier.release(chain.keys[0])
    assert pool.get_num_free_blocks() == BLOCKS - 1 - 2
    tier.give_back(blocks)
    assert pool.get_num_free_blocks() == BLOCKS - 1


def test_relief_releases_spare_nodes_first_and_nodes_in_use_last(tier, pool):
    old, spare, used = (Chain(tier, pool, 8, name=name) for name in ("old", "spare", "used"))
    everything = BLOCKS - 1
    assert tier.relieve(everything - 6, spare.keys, used.keys) == []
    assert tier.relieve(everything - 4, spare.keys, used.keys) == spare.keys
    assert tier.relieve(everything - 2, spare.keys, used.keys) == old.keys
    assert tier.relieve(everything, spare.keys, used.keys) == used.keys
    assert tier.relieve(everything + 1, spare.keys, used.keys) == []


def test_relief_releases_leaves_first(tier, pool):
    chain = Chain(tier, pool, 8, 8)
    assert tier.relieve(pool.get_num_free_blocks() + 1, (), ()) == [chain.keys[1]]


def test_a_node_becomes_a_leaf_when_the_nodes_behind_it_are_released(tier, pool):
    chain, younger = Chain(tier, pool, 8, 8), Chain(tier, pool, 8, name="younger")
    free = pool.get_num_free_blocks()
    assert tier.relieve(free + 4, (), ()) == [*chain.keys[::-1]]
    assert younger.keys[0] in tier


def test_relief_keeps_nodes_whose_release_frees_no_block(tier, pool):
    chain = Chain(tier, pool, 8)
    tier.retain(tier.blocks(chain.keys[0]))
    assert tier.relieve(BLOCKS, (), ()) == []
    assert chain.keys[0] in tier


def test_blocks_without_hashes_cannot_be_found(tier, pool):
    chain = Chain(tier, pool, 8, 3)
    first, second = chain.keys
    assert not tier.can_be_found(tier.node(first), tier.blocks(first))
    # A node without a full block of its own needs no hash.
    assert tier.can_be_found(tier.node(second), tier.blocks(second))


def test_nodes_are_matched_by_namespace_and_document(tier, pool):
    chain = Chain(tier, pool, 6, 5)
    other = Chain(tier, pool, 6, name="o")
    assert tier.matching(lambda namespace, path: namespace == "tenant" and "n0" in path) == chain.keys
    assert tier.matching(lambda namespace, path: "o0" in path) == other.keys
    assert tier.matching(lambda namespace, path: namespace == "stranger") == []
    assert [node.path for node in tier.nodes()] == [("n0",), ("n0", "n1"), ("o0",)]
