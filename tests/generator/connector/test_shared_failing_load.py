"""Two requests plan to load the same copy, and the load fails: both answers are right, and nothing wrong is kept."""

import asyncio

import pytest
from kv_plans import DISK, GPU, HOST, SYSTEM, THIRD, ask, forget_blocks, held, kv_path, put, segment, uncached_tokens

from protocol.kv import LostCopy, Orders

pytestmark = [pytest.mark.vllm, pytest.mark.asyncio(loop_scope="session")]

# Longer than a step of the engine, so that the second request is planned before the first has computed it again.
LONG, BEHIND = segment("long", 520), segment("behind", 150)


@pytest.mark.parametrize("tier", [HOST, DISK])
async def test_requests_that_share_a_failing_load_are_answered_rightly(engine, tier):
    path = kv_path((SYSTEM, LONG, BEHIND))
    await put(engine, path, tier)
    longer = kv_path((*path.segments, THIRD), path.namespace)
    longer.pages = [*path.pages, kv_path((SYSTEM, LONG, BEHIND, THIRD), first_page=40).pages[-1]]
    await engine.carry_out(Orders((path.moves(tier, None)[1],)))
    one, other = await asyncio.gather(
        ask(engine, path.plan("why?", tier, None)),
        ask(engine, longer.plan("why?", [tier, tier, tier, None], [None, None, None, HOST])),
    )
    assert LostCopy(path.keys[1], tier) in (*one.prefill.lost, *other.prefill.lost)
    assert one.tokens == await uncached_tokens(engine, path, "why?")
    assert other.tokens == await uncached_tokens(engine, longer, "why?")
    # What vLLM's own cache finds now is right.
    again = await ask(engine, longer.plan("and?", None, None))
    assert again.prefill.cached_tokens
    assert again.tokens == await uncached_tokens(engine, longer, "and?")
    # What the second request saved is right.
    await forget_blocks(engine, longer)
    await ask(engine, longer.plan("to compute it", None, [GPU, GPU, GPU, None]), max_tokens=1)
    await engine.carry_out(Orders(forget=((longer.namespace, "third"),), tiers=(GPU,)))
    saved = await ask(engine, longer.plan("why?", [GPU, GPU, GPU, HOST], None))
    assert saved.prefill.loaded.get(HOST) == 70
    assert saved.tokens == other.tokens
    await engine.carry_out(Orders(forget=((path.namespace, "system"),)))
    assert path.namespace not in {namespace for namespace, _ in await held(engine, tier)}
