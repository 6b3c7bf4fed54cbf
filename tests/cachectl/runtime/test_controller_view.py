"""The controller's statistics, and its view of the tree."""

import pytest
from controller_under_test import TOKENS, ask, fill, key, path, report

from protocol.cache import TierStats
from protocol.errors import InvalidRequest
from protocol.tiers import Tier

GPU, HOST, DISK = Tier


async def test_stats_show_tiers_and_planned_tokens(build):
    controller = build("one", "two", gpu=20, host=15)
    await fill(controller, "ab")
    await controller.admit(ask("query", "c", system="s"))
    stats = await controller.stats()
    assert (stats.policy, stats.admitted, stats.running, stats.largest_overtake) == ("PGDSF", 2, 1, 0)
    assert (stats.planned_cached_tokens, stats.planned_tokens) == (0, 40)
    # "b" was evicted to host memory for "s". Then "a" was evicted for "c", and replaced "b" in host memory.
    assert stats.tiers == (
        TierStats(GPU, "one", 20, 20, 10, nodes=2, evictions=2, place="gpu@one"),
        TierStats(GPU, "two", 20, 0, 0, nodes=0, evictions=0, place="gpu@two"),
        TierStats(HOST, None, 15, 10, 0, nodes=1, evictions=1, place="host"),
    )
    await controller.complete(report("query"))
    await controller.admit(ask("again", "cd", system="s"))
    stats = await controller.stats()
    assert (stats.planned_cached_tokens, stats.planned_tokens) == (20, 70)


async def test_tiers_without_room_are_left_out_of_the_stats(build):
    assert (await build(gpu=0).stats()).tiers == ()
    assert [tier.tier for tier in (await build(gpu=0, disk=1).stats()).tiers] == [DISK]


@pytest.mark.parametrize(("depth", "seen", "hidden"), [(0, "", 0), (1, "a", 2), (2, "abc", 0), (9, "abc", 0)])
async def test_the_tree_is_shown_down_to_a_depth(controller, depth, seen, hidden):
    await fill(controller, "ab", "ac", "ac")
    view = await controller.tree(depth, 1000)
    assert view.nodes == 3
    shown = list(view.namespaces["tenant"])
    for node in shown:
        shown += node.children
    assert sorted(node.content for node in shown) == sorted(seen)
    assert sum(node.hidden for node in shown) == hidden
    assert [node.content for node in shown[1:]] in ([], ["c", "b"]), "the most used come first"


async def test_a_node_is_shown_with_its_tiers_and_its_uses(build):
    controller = build("one", "two", host=1000)
    await fill(controller, "a")
    await controller.pin(path("a"))
    await fill(controller, "x")
    await controller.admit(ask("query", "ab"))
    view = await controller.tree(9, 1000)
    [first, second] = view.namespaces["tenant"]
    assert (first.key, first.content, first.tokens, first.places) == (key("a"), "a", TOKENS, ("gpu@one", "host"))
    assert (first.frequency, first.requests_ago, first.locked, first.pinned) == (2.0, 0, True, True)
    [reserved] = first.children
    assert (reserved.content, reserved.places, reserved.locked, reserved.pinned) == ("b", (), True, False)
    assert (second.content, second.requests_ago, second.locked, second.pinned) == ("x", 1, False, False)
    assert view.tiers == (await controller.stats()).tiers


@pytest.mark.parametrize(("depth", "limit", "param"), [(-1, 1000, "depth"), (-99, -1, "depth"), (9, -1, "limit")])
async def test_a_negative_depth_or_limit_is_refused(controller, depth, limit, param):
    with pytest.raises(InvalidRequest) as caught:
        await controller.tree(depth, limit)
    assert caught.value.param == param


async def test_a_controller_is_ready(controller):
    await controller.ready()
