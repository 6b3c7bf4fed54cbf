"""Which shard a prompt belongs to."""

from collections import Counter

import pytest

from cachectl.settings import ControllerSettings
from cachectl.sharding.controller_shard import WHOLE, ControllerShard, shard_of
from protocol.generation import StepBudget

DOCUMENTS = [f"{number:032x}" for number in range(20_000)]


@pytest.mark.parametrize("count", [1, 2, 4, 7])
def test_documents_spread_evenly(count):
    parts = Counter(shard_of(document, count) for document in DOCUMENTS)
    assert set(parts) == set(range(count))
    assert max(parts.values()) < 1.1 * len(DOCUMENTS) / count


@pytest.mark.parametrize("count", [1, 3, 4])
def test_a_new_shard_takes_from_the_others_and_moves_nothing_else(count):
    moved = [(old, new) for old, new in ((shard_of(d, count), shard_of(d, count + 1)) for d in DOCUMENTS) if old != new]
    assert {new for _, new in moved} == {count}
    assert len(moved) == pytest.approx(len(DOCUMENTS) / (count + 1), rel=0.1)


def test_the_choice_never_changes():
    # KV on disk outlives the process that chose.
    assert [shard_of(document, 4) for document in DOCUMENTS[:12]] == [0, 3, 3, 1, 0, 2, 1, 1, 1, 3, 3, 0]
    assert shard_of("", 4) == 2


def test_a_lone_controller_changes_nothing():
    settings, step = ControllerSettings(), StepBudget(2048, 1024)
    assert WHOLE.namespace("abc") == WHOLE.plain("abc") == "abc"
    assert WHOLE.owns("abc")
    assert not WHOLE.disowns("abc")
    assert (WHOLE.settings(settings), WHOLE.step(step), WHOLE.step(None)) == (settings, step, None)
    assert (WHOLE.share(7), WHOLE.first(7)) == (7, 0)


def test_shards_have_namespaces_and_parts_of_their_own():
    shards = [ControllerShard(number, 3) for number in range(3)]
    names = [shard.namespace("abc") for shard in shards]
    assert len(set(names)) == 3
    for shard, name in zip(shards, names, strict=True):
        assert shard.plain(name) == "abc"
        assert [other.owns(name) for other in shards] == [other is shard for other in shards]
        assert not any(other.disowns(name) for other in shards)
    assert [(shard.first(100), shard.share(100)) for shard in shards] == [(0, 33), (33, 33), (66, 33)]
    small = shards[0].settings(ControllerSettings(max_running=2, max_queued=0))
    assert (small.max_running, small.max_queued) == (1, 1)
    assert shards[0].step(StepBudget(90, 40)) == StepBudget(30, 30)
    assert shards[0].step(None) is None


@pytest.mark.parametrize("namespace", ["abc", "abc#3", "abc#", "abc#x"])
def test_the_first_shard_disowns_what_is_no_shards(namespace):
    shards = [ControllerShard(number, 3) for number in range(3)]
    assert not any(shard.owns(namespace) for shard in shards)
    assert [shard.disowns(namespace) for shard in shards] == [True, False, False]


def test_a_lone_controller_disowns_what_shards_had():
    assert WHOLE.disowns("abc#2")
    assert not WHOLE.owns("abc#2")
