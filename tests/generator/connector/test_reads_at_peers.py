"""What a real vLLM reads at a peer, which here is its own page server: the same answers as without any cache."""

import msgspec
import pytest
import pytest_asyncio
from composed_prompts import DONATED, ComposedPrompts
from kv_plans import DISK, FIRST, GPU, HOST, SECOND, SYSTEM, ask, forget_blocks, put, uncached_tokens, until_held

from examine.measuring.kv_paths import KvPath
from generator.engines.vllm_engine import VllmEngine
from protocol.kv import KvRead, LostCopy, Orders, PeerCopy
from protocol.plans import Donor, PrefillPlan
from protocol.tiers import Tier

pytestmark = [pytest.mark.vllm, pytest.mark.asyncio(loop_scope="session")]

ELSEWHERE = "elsewhere"


@pytest_asyncio.fixture(loop_scope="session")
async def addresses(engine) -> tuple[str, ...]:
    """Where the engine serves its own KV."""
    kv = (await engine.info()).kv
    assert kv is not None
    assert len(kv.peers.addresses) == 1
    return kv.peers.addresses


def reading(path: KvPath, addresses: tuple[str, ...], tier: Tier, kept: Tier | None = GPU) -> PrefillPlan:
    """A plan that reads a path at a peer."""
    plan = path.plan("why?", None, kept)
    nodes = tuple(
        msgspec.structs.replace(node, peer=PeerCopy(ELSEWHERE, addresses, tier, pages if tier is HOST else None))
        for node, pages in zip(plan.nodes, path.pages, strict=True)
    )
    return msgspec.structs.replace(plan, nodes=nodes)


@pytest.mark.parametrize("tier", [HOST, DISK])
async def test_answers_are_the_same_as_without_a_cache(engine, path, addresses, tier):
    await put(engine, path, tier)
    answer = await ask(engine, reading(path, addresses, tier))
    assert answer.tokens == await uncached_tokens(engine, path, "why?")
    assert answer.prefill.loaded == {tier: path.tokens}
    assert answer.prefill.lost == ()
    (read,) = answer.prefill.peer_reads
    assert (read.location, read.failed) == (ELSEWHERE, False)
    assert read.tokens >= path.tokens
    # It is kept here like what is computed.
    again = await ask(engine, path.plan("how?", GPU, GPU))
    assert again.prefill.loaded == {GPU: path.tokens}
    assert again.tokens == await uncached_tokens(engine, path, "how?")


async def test_what_is_read_can_be_kept_in_a_tier_below(engine, path, addresses):
    await put(engine, path, HOST)
    plan = reading(path, addresses, HOST, kept=DISK)
    await ask(engine, plan)
    await until_held(engine, path, DISK)
    assert await engine.carry_out(Orders(path.moves(HOST, None))) == ()
    await forget_blocks(engine, path)
    answer = await ask(engine, path.plan("why?", DISK, None))
    assert answer.prefill.loaded == {DISK: path.tokens}
    assert answer.tokens == await uncached_tokens(engine, path, "why?")


async def test_the_front_comes_from_here_and_the_rest_from_a_peer(engine, path, addresses):
    await put(engine, path, HOST)
    plan = reading(path, addresses, HOST)
    own = path.plan("why?", HOST, GPU).nodes
    answer = await ask(engine, msgspec.structs.replace(plan, nodes=(*own[:2], *plan.nodes[2:])))
    assert answer.tokens == await uncached_tokens(engine, path, "why?")
    assert answer.prefill.loaded == {HOST: path.tokens}
    (read,) = answer.prefill.peer_reads
    # The third document, and what else is in its first block.
    assert len(SECOND.token_ids) <= read.tokens < len(SECOND.token_ids) + 64


async def test_a_peer_that_is_away_costs_computing(engine, path, addresses):
    await put(engine, path, HOST)
    # Nothing listens at port 1.
    answer = await ask(engine, reading(path, ("127.0.0.1:1",), HOST))
    assert answer.tokens == await uncached_tokens(engine, path, "why?")
    assert answer.prefill.cached_tokens == 0
    assert answer.prefill.lost == ()
    (read,) = answer.prefill.peer_reads
    assert read == KvRead(ELSEWHERE, 0, read.seconds, True, HOST, "127.0.0.1:1")
    assert await engine.carry_out(Orders(path.moves(GPU, None))) == ()


async def test_a_copy_that_the_peer_does_not_have_is_lost_there(engine, path, addresses):
    answer = await ask(engine, reading(path, addresses, DISK))
    assert answer.tokens == await uncached_tokens(engine, path, "why?")
    assert answer.prefill.cached_tokens == 0
    assert set(answer.prefill.lost) == {LostCopy(key, DISK, ELSEWHERE) for key in path.keys}
    assert answer.prefill.peer_reads == ()


def composed_at_a_peer(prompts: ComposedPrompts, addresses: tuple[str, ...], tier: Tier) -> PrefillPlan:
    """A plan that composes documents out of donors in a tier of a peer."""
    plan = prompts.plan("why?", 1.0)

    def at_peer(donor: Donor) -> Donor:
        peer = PeerCopy(ELSEWHERE, addresses, tier, donor.pages if tier is HOST else None)
        return msgspec.structs.replace(donor, pages=None, peer=peer)

    nodes = tuple(
        msgspec.structs.replace(node, donor=at_peer(node.donor)) if node.donor is not None else node
        for node in plan.nodes
    )
    return msgspec.structs.replace(plan, nodes=nodes)


async def test_documents_at_a_peer_donate(engine, path, addresses):
    prompts = ComposedPrompts(path.namespace, HOST)
    await prompts.put(engine)
    answer = await ask(engine, composed_at_a_peer(prompts, addresses, HOST))
    assert answer.tokens == await uncached_tokens(engine, prompts.whole, "why?")
    assert answer.prefill.loaded == {HOST: len(SYSTEM.token_ids) + len(FIRST.token_ids)}
    assert (answer.prefill.composed_tokens, answer.prefill.recomputed_tokens) == (0, DONATED)
    assert sum(read.tokens for read in answer.prefill.peer_reads) >= DONATED


async def test_without_a_donor_at_the_peer_documents_are_computed(engine: VllmEngine, path, addresses):
    prompts = ComposedPrompts(path.namespace, HOST)
    await prompts.put(engine)
    answer = await ask(engine, composed_at_a_peer(prompts, addresses, DISK))
    assert answer.tokens == await uncached_tokens(engine, prompts.whole, "why?")
    assert answer.prefill.composed_tokens == 0
    assert {copy.location for copy in answer.prefill.lost} == {ELSEWHERE}
