"""A search over shards: when there is a merged set, what stands in it, and what becomes of shards that fail."""

import asyncio
from contextlib import suppress

import pytest
from sharded_cases import PARTIAL, REQUEST, ScriptedShard, found, names, sets_of, sharded

from protocol.errors import (
    DeployFailed,
    InternalError,
    InvalidRequest,
    NoDocuments,
    Overloaded,
    RetrieverNotReady,
    ShardTimeout,
    UnknownCollection,
    UnknownFilterKey,
)
from protocol.retrieval import CandidateSet

LOST = RetrieverNotReady("shard 1 is being restarted")
QUICK = {**PARTIAL, "timeout_s": 0.05}


async def all_that_can_happen():
    """Return when whatever waits for nothing but its turn has had it."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_stages_of_several_shards_become_one_row():
    long = ScriptedShard(found(1, 3, {"a": 0.1}), found(2, 3, {"b": 0.5, "a": 0.1}), found(3, 3, {"c": 0.9, "b": 0.5}))
    short = ScriptedShard(found(1, 1, {"x": 0.7, "y": 0.2}))
    last = (await sets_of(sharded(long, short)))[-1]
    assert (names(last), last.scores) == (["0.c", "1.x", "0.b"], (0.9, 0.7, 0.5))
    assert (last.of, last.missing_shards) == (3, ())


async def test_there_is_a_set_when_every_open_shard_has_come_further_and_not_before():
    gates = [asyncio.Event() for _ in range(3)]
    ahead = ScriptedShard(found(1, 3, {"a": 0.1}), found(2, 3, {"b": 0.2}), gates[1], found(3, 3, {"c": 0.3}))
    behind = ScriptedShard(gates[0], found(1, 2, {"x": 0.9}), gates[2], found(2, 2, {"y": 0.8}))
    stages = sharded(ahead, behind).search(REQUEST)
    first = asyncio.ensure_future(anext(stages))
    await all_that_can_happen()
    assert not first.done()
    gates[0].set()
    merged = await first
    assert (names(merged), merged.stage, merged.of, merged.final) == (["1.x", "0.b"], 1, 3, False)
    second = asyncio.ensure_future(anext(stages))
    gates[2].set()
    await all_that_can_happen()
    assert not second.done()
    gates[1].set()
    merged = await second
    assert (names(merged), merged.stage, merged.of, merged.final) == (["1.y", "0.c"], 3, 3, True)
    assert [each async for each in stages] == []


async def test_of_equal_scores_the_earlier_shards_come_first_in_their_own_order():
    one = ScriptedShard(found(1, 1, {"9": 0.5, "10": 0.5}))
    other = ScriptedShard(found(1, 1, {"8": 0.5}))
    (only,) = await sets_of(sharded(one, other))
    assert names(only) == ["0.9", "0.10", "1.8"]


async def test_shards_that_have_nothing_to_add_are_not_missed():
    shards = [
        ScriptedShard(UnknownCollection("no")),
        ScriptedShard(found(1, 1, {"a": 0.5})),
        ScriptedShard(NoDocuments("")),
    ]
    (only,) = await sets_of(sharded(*shards))
    assert (names(only), only.missing_shards) == (["1.a"], ())


@pytest.mark.parametrize("mode", ["error", "partial"])
async def test_what_all_shards_refuse_is_refused_in_the_most_telling_way(mode):
    empty, unknown = NoDocuments("empty"), UnknownCollection("unknown")
    with pytest.raises(NoDocuments):
        await sets_of(sharded(ScriptedShard(unknown), ScriptedShard(empty), on_lost=mode))
    with pytest.raises(UnknownCollection):
        await sets_of(sharded(ScriptedShard(unknown), ScriptedShard(unknown), on_lost=mode))


async def test_an_attribute_is_unknown_when_no_shard_with_documents_has_it():
    def knowing(*unknown):
        return ScriptedShard(found(1, 1, {"a": 0.5}, unknown_keys=unknown))

    shards = [knowing("lang"), knowing("year"), knowing()]
    assert len(await sets_of(sharded(*shards[:2]))) == 1
    assert all(request.check_keys is False for shard in shards for request in shard.requests)
    with pytest.raises(UnknownFilterKey, match="year"):
        await sets_of(sharded(knowing("lang", "year"), ScriptedShard(NoDocuments("")), knowing("year")))
    # A lost shard may be the one that has it.
    with pytest.raises(RetrieverNotReady):
        await sets_of(sharded(knowing("year"), ScriptedShard(LOST), **PARTIAL))


@pytest.mark.parametrize("error", [InvalidRequest("too deep"), ValueError("a defect")])
async def test_what_is_wrong_with_the_request_is_raised_whatever_the_others_find(error):
    shards = [ScriptedShard(found(1, 1, {"a": 0.5})), ScriptedShard(error)]
    with pytest.raises(type(error)):
        await sets_of(sharded(*shards, **PARTIAL))


BROKEN = {
    "lost": (LOST,),
    "defect": (InternalError("the shard failed"),),
    "full": (Overloaded("no room"),),
    "says nothing": (),
    "lost in mid-stream": (found(1, 2, {"x": 0.9}), LOST),
    "ended too early": (found(1, 2, {"x": 0.9}),),
}


@pytest.mark.parametrize("script", BROKEN.values(), ids=BROKEN.keys())
async def test_a_lost_shard_makes_the_answer_partial_or_an_error(script):
    def shards():
        return ScriptedShard(found(1, 2, {"a": 0.5}), found(2, 2, {"b": 0.6, "a": 0.5})), ScriptedShard(*script)

    with pytest.raises((RetrieverNotReady, InternalError, Overloaded)):
        await sets_of(sharded(*shards(), on_lost="error"))
    last = (await sets_of(sharded(*shards(), **PARTIAL)))[-1]
    had = ["1.x" for step in script if isinstance(step, CandidateSet)]
    assert (names(last), last.missing_shards) == ([*had, "0.b", "0.a"], ("1",))


@pytest.mark.parametrize("before", [(), (found(1, 2, {"x": 0.9}),)])
async def test_a_slow_shard_makes_the_answer_partial_or_an_error(before):
    def shards():
        return ScriptedShard(found(1, 1, {"a": 0.5})), ScriptedShard(*before, asyncio.Event(), found(2, 2))

    with pytest.raises(ShardTimeout, match="shard 1"):
        await sets_of(sharded(*shards(), timeout_s=0.05))
    sharding = shards()
    last = (await sets_of(sharded(*sharding, **QUICK)))[-1]
    assert (names(last), last.missing_shards) == ([*(["1.x"] if before else []), "0.a"], ("1",))
    assert [shard.open for shard in sharding] == [0, 0]


async def test_sets_before_the_final_one_say_who_is_missing_too():
    gate = asyncio.Event()
    going_on = ScriptedShard(found(1, 2, {"a": 0.5}), gate, found(2, 2, {"a": 0.5}))
    stages = sharded(going_on, ScriptedShard(LOST), **PARTIAL).search(REQUEST)
    first = await anext(stages)
    assert (first.final, first.missing_shards) == (False, ("1",))
    gate.set()
    assert [(each.final, each.missing_shards) async for each in stages] == [(True, ("1",))]


@pytest.mark.parametrize("other", [LOST, NoDocuments("empty"), UnknownCollection("unknown")])
@pytest.mark.parametrize("script", [(LOST,), (found(1, 2, {"x": 0.9}), LOST)])
async def test_without_an_answer_of_any_shard_there_is_none(script, other):
    with pytest.raises(RetrieverNotReady):
        await sets_of(sharded(ScriptedShard(*script), ScriptedShard(other), **PARTIAL))


async def test_when_all_are_slow_there_is_no_answer():
    with pytest.raises(ShardTimeout):
        await sets_of(sharded(*(ScriptedShard(found(1, 2), asyncio.Event()) for _ in range(2)), **QUICK))


async def test_closed_it_ends_every_shards_search():
    shards = [ScriptedShard(found(1, 2, {"a": 0.5}), asyncio.Event()) for _ in range(3)]
    tasks = asyncio.all_tasks()
    stages = sharded(*shards).search(REQUEST)
    await anext(stages)
    assert [shard.open for shard in shards] == [1, 1, 1]
    await stages.aclose()
    assert [shard.open for shard in shards] == [0, 0, 0]
    assert asyncio.all_tasks() == tasks


async def test_a_shard_that_does_not_end_behind_its_final_set_does_not_hold_the_search_back():
    shards = [ScriptedShard(found(1, 1, {"a": 0.5}), asyncio.Event()) for _ in range(3)]
    tasks = asyncio.all_tasks()
    async with asyncio.timeout(1):
        (only,) = [candidates async for candidates in sharded(*shards, on_lost="error").search(REQUEST)]
    assert (names(only), only.missing_shards) == (["0.a", "1.a", "2.a"], ())
    assert [shard.open for shard in shards] == [0, 0, 0]
    assert asyncio.all_tasks() == tasks


async def test_a_shard_that_ends_behind_its_final_set_is_not_broken_off():
    ends = []

    class Ending(ScriptedShard):
        async def search(self, request):
            try:
                yield found(1, 1, {"a": 0.5})
                await all_that_can_happen()
                ends.append("by itself")
            except BaseException:
                ends.append("broken off")
                raise

    await sets_of(sharded(Ending(), Ending()))
    assert ends == ["by itself"] * 2


async def test_cancelled_it_ends_every_shards_search():
    shards = [ScriptedShard(asyncio.Event()) for _ in range(3)]
    tasks = asyncio.all_tasks()
    search = asyncio.create_task(sets_of(sharded(*shards)))
    while not all(shard.open for shard in shards):
        await asyncio.sleep(0)
    search.cancel()
    with suppress(asyncio.CancelledError):
        await search
    assert [shard.open for shard in shards] == [0, 0, 0]
    assert asyncio.all_tasks() == tasks


async def test_when_one_fails_no_search_of_another_is_left():
    going_on = ScriptedShard(found(1, 2, {"a": 0.5}), asyncio.Event())
    with pytest.raises(RetrieverNotReady):
        await sets_of(sharded(going_on, ScriptedShard(LOST)))
    assert going_on.open == 0


async def test_all_are_ready_or_with_partial_answers_one():
    up, down = ScriptedShard(), ScriptedShard()
    down.missing = LOST
    with pytest.raises(RetrieverNotReady):
        await sharded(up, down).ready()
    await sharded(up, down, **PARTIAL).ready()
    with pytest.raises(RetrieverNotReady):
        await sharded(down, down, **PARTIAL).ready()
    down.missing = asyncio.Event()
    await sharded(up, down, **PARTIAL).ready()
    with pytest.raises(ShardTimeout):
        await sharded(up, down).ready()


async def test_a_shard_that_will_never_be_there_is_the_news_only_where_all_are_needed():
    starting, given_up = ScriptedShard(), ScriptedShard()
    starting.missing, given_up.missing = LOST, DeployFailed("no such model")
    with pytest.raises(DeployFailed):
        await sharded(starting, given_up).ready()
    with pytest.raises(RetrieverNotReady):
        await sharded(starting, given_up, **PARTIAL).ready()


async def test_who_was_not_ready_is_not_waited_for_until_he_is():
    up, down = ScriptedShard(found(1, 1, {"a": 0.5})), ScriptedShard(found(1, 1, {"x": 0.9}))
    retriever = sharded(up, down, **PARTIAL)
    down.missing = LOST
    await retriever.ready()
    (only,) = await sets_of(retriever)
    assert (names(only), only.missing_shards, down.requests) == (["0.a"], ("1",), [])
    with pytest.raises(RetrieverNotReady):
        await retriever.list_collections("acme")
    down.missing = None
    await retriever.ready()
    (only,) = await sets_of(retriever)
    assert (names(only), only.missing_shards) == (["1.x", "0.a"], ())
