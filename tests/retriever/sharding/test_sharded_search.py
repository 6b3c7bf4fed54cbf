"""A search over shards: when sets are merged, what they contain, and how failed shards are treated."""

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


async def run_ready_tasks():
    """Let the event loop run all tasks that are ready."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_stages_of_several_shards_form_one_sequence():
    long = ScriptedShard(found(1, 3, {"a": 0.1}), found(2, 3, {"b": 0.5, "a": 0.1}), found(3, 3, {"c": 0.9, "b": 0.5}))
    short = ScriptedShard(found(1, 1, {"x": 0.7, "y": 0.2}))
    last = (await sets_of(sharded(long, short)))[-1]
    assert (names(last), last.scores) == (["0.c", "1.x", "0.b"], (0.9, 0.7, 0.5))
    assert (last.of, last.missing_shards) == (3, ())


async def test_set_is_merged_when_every_open_shard_has_sent_one():
    gates = [asyncio.Event() for _ in range(3)]
    ahead = ScriptedShard(found(1, 3, {"a": 0.1}), found(2, 3, {"b": 0.2}), gates[1], found(3, 3, {"c": 0.3}))
    behind = ScriptedShard(gates[0], found(1, 2, {"x": 0.9}), gates[2], found(2, 2, {"y": 0.8}))
    stages = sharded(ahead, behind).search(REQUEST)
    first = asyncio.ensure_future(anext(stages))
    await run_ready_tasks()
    assert not first.done()
    gates[0].set()
    merged = await first
    assert (names(merged), merged.stage, merged.of, merged.final) == (["1.x", "0.b"], 1, 3, False)
    second = asyncio.ensure_future(anext(stages))
    gates[2].set()
    await run_ready_tasks()
    assert not second.done()
    gates[1].set()
    merged = await second
    assert (names(merged), merged.stage, merged.of, merged.final) == (["1.y", "0.c"], 3, 3, True)
    assert [each async for each in stages] == []


async def test_equal_scores_are_ordered_by_shard():
    one = ScriptedShard(found(1, 1, {"9": 0.5, "10": 0.5}))
    other = ScriptedShard(found(1, 1, {"8": 0.5}))
    (only,) = await sets_of(sharded(one, other))
    assert names(only) == ["0.9", "0.10", "1.8"]


async def test_empty_shards_do_not_count_as_missing():
    shards = [
        ScriptedShard(UnknownCollection("no")),
        ScriptedShard(found(1, 1, {"a": 0.5})),
        ScriptedShard(NoDocuments("")),
    ]
    (only,) = await sets_of(sharded(*shards))
    assert (names(only), only.missing_shards) == (["1.a"], ())


@pytest.mark.parametrize("mode", ["error", "partial"])
async def test_no_documents_takes_precedence_over_unknown_collection(mode):
    empty, unknown = NoDocuments("empty"), UnknownCollection("unknown")
    with pytest.raises(NoDocuments):
        await sets_of(sharded(ScriptedShard(unknown), ScriptedShard(empty), on_lost=mode))
    with pytest.raises(UnknownCollection):
        await sets_of(sharded(ScriptedShard(unknown), ScriptedShard(unknown), on_lost=mode))


async def test_attribute_is_unknown_if_no_shard_with_documents_has_it():
    def knowing(*unknown):
        return ScriptedShard(found(1, 1, {"a": 0.5}, unknown_keys=unknown))

    shards = [knowing("lang"), knowing("year"), knowing()]
    assert len(await sets_of(sharded(*shards[:2]))) == 1
    assert all(request.check_keys is False for shard in shards for request in shard.requests)
    with pytest.raises(UnknownFilterKey, match="year"):
        await sets_of(sharded(knowing("lang", "year"), ScriptedShard(NoDocuments("")), knowing("year")))
    # The lost shard may have the attribute.
    with pytest.raises(RetrieverNotReady):
        await sets_of(sharded(knowing("year"), ScriptedShard(LOST), **PARTIAL))


@pytest.mark.parametrize("error", [InvalidRequest("too deep"), ValueError("a defect")])
async def test_invalid_request_of_one_shard_fails_the_search(error):
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
async def test_lost_shard_makes_the_answer_partial_or_an_error(script):
    def shards():
        return ScriptedShard(found(1, 2, {"a": 0.5}), found(2, 2, {"b": 0.6, "a": 0.5})), ScriptedShard(*script)

    with pytest.raises((RetrieverNotReady, InternalError, Overloaded)):
        await sets_of(sharded(*shards(), on_lost="error"))
    last = (await sets_of(sharded(*shards(), **PARTIAL)))[-1]
    had = ["1.x" for step in script if isinstance(step, CandidateSet)]
    assert (names(last), last.missing_shards) == ([*had, "0.b", "0.a"], ("1",))


@pytest.mark.parametrize("before", [(), (found(1, 2, {"x": 0.9}),)])
async def test_slow_shard_makes_the_answer_partial_or_an_error(before):
    def shards():
        return ScriptedShard(found(1, 1, {"a": 0.5})), ScriptedShard(*before, asyncio.Event(), found(2, 2))

    with pytest.raises(ShardTimeout, match="shard 1"):
        await sets_of(sharded(*shards(), timeout_s=0.05))
    sharding = shards()
    last = (await sets_of(sharded(*sharding, **QUICK)))[-1]
    assert (names(last), last.missing_shards) == ([*(["1.x"] if before else []), "0.a"], ("1",))
    assert [shard.open for shard in sharding] == [0, 0]


async def test_provisional_sets_name_missing_shards():
    gate = asyncio.Event()
    going_on = ScriptedShard(found(1, 2, {"a": 0.5}), gate, found(2, 2, {"a": 0.5}))
    stages = sharded(going_on, ScriptedShard(LOST), **PARTIAL).search(REQUEST)
    first = await anext(stages)
    assert (first.final, first.missing_shards) == (False, ("1",))
    gate.set()
    assert [(each.final, each.missing_shards) async for each in stages] == [(True, ("1",))]


@pytest.mark.parametrize("other", [LOST, NoDocuments("empty"), UnknownCollection("unknown")])
@pytest.mark.parametrize("script", [(LOST,), (found(1, 2, {"x": 0.9}), LOST)])
async def test_search_fails_if_no_shard_finishes(script, other):
    with pytest.raises(RetrieverNotReady):
        await sets_of(sharded(ScriptedShard(*script), ScriptedShard(other), **PARTIAL))


async def test_search_fails_if_all_shards_are_slow():
    with pytest.raises(ShardTimeout):
        await sets_of(sharded(*(ScriptedShard(found(1, 2), asyncio.Event()) for _ in range(2)), **QUICK))


async def test_closing_ends_the_searches_of_all_shards():
    shards = [ScriptedShard(found(1, 2, {"a": 0.5}), asyncio.Event()) for _ in range(3)]
    tasks = asyncio.all_tasks()
    stages = sharded(*shards).search(REQUEST)
    await anext(stages)
    assert [shard.open for shard in shards] == [1, 1, 1]
    await stages.aclose()
    assert [shard.open for shard in shards] == [0, 0, 0]
    assert asyncio.all_tasks() == tasks


async def test_shard_that_hangs_after_its_final_set_does_not_delay_the_search():
    shards = [ScriptedShard(found(1, 1, {"a": 0.5}), asyncio.Event()) for _ in range(3)]
    tasks = asyncio.all_tasks()
    async with asyncio.timeout(1):
        (only,) = [candidates async for candidates in sharded(*shards, on_lost="error").search(REQUEST)]
    assert (names(only), only.missing_shards) == (["0.a", "1.a", "2.a"], ())
    assert [shard.open for shard in shards] == [0, 0, 0]
    assert asyncio.all_tasks() == tasks


async def test_shard_that_ends_after_its_final_set_is_not_cancelled():
    ends = []

    class Ending(ScriptedShard):
        async def search(self, request):
            try:
                yield found(1, 1, {"a": 0.5})
                await run_ready_tasks()
                ends.append("by itself")
            except BaseException:
                ends.append("cancelled")
                raise

    await sets_of(sharded(Ending(), Ending()))
    assert ends == ["by itself"] * 2


async def test_cancelling_ends_the_searches_of_all_shards():
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


async def test_failure_of_one_shard_ends_the_other_searches():
    going_on = ScriptedShard(found(1, 2, {"a": 0.5}), asyncio.Event())
    with pytest.raises(RetrieverNotReady):
        await sets_of(sharded(going_on, ScriptedShard(LOST)))
    assert going_on.open == 0


async def test_ready_needs_all_shards_or_one_with_partial_answers():
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


async def test_failed_deployment_is_raised_only_if_all_shards_are_needed():
    starting, given_up = ScriptedShard(), ScriptedShard()
    starting.missing, given_up.missing = LOST, DeployFailed("no such model")
    with pytest.raises(DeployFailed):
        await sharded(starting, given_up).ready()
    with pytest.raises(RetrieverNotReady):
        await sharded(starting, given_up, **PARTIAL).ready()


async def test_lost_shard_is_skipped_until_it_is_ready_again():
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
