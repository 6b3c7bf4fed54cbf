"""The connector inside a real vLLM: the tier that a document's KV comes from never changes an answer."""

import asyncio
import contextlib

import msgspec
import pytest
from engine_settings import SLOTS
from kv_plans import (
    DISK,
    FIRST,
    GPU,
    HOST,
    SYSTEM,
    THIRD,
    ask,
    forget_blocks,
    held,
    kv_path,
    put,
    segment,
    uncached_tokens,
    until_held,
)

from examine.measuring.engines import generate
from protocol.generation import Sampling
from protocol.kv import LostCopy, Orders, Pages

pytestmark = [pytest.mark.vllm, pytest.mark.asyncio(loop_scope="session")]


class TestTiers:
    @pytest.mark.parametrize("tier", [GPU, HOST, DISK])
    async def test_an_answer_is_the_same_from_every_tier(self, engine, path, tier):
        await put(engine, path, tier)
        answer = await ask(engine, path.plan("why?", tier, GPU))
        assert answer.prefill.loaded == {tier: path.tokens}
        assert answer.prefill.cached_tokens == path.tokens
        assert answer.prefill.prompt_tokens == path.tokens + 21
        assert answer.prefill.lost == ()
        assert answer.tokens == await uncached_tokens(engine, path, "why?")

    async def test_a_path_may_lie_in_several_tiers_at_once(self, engine, path):
        longer = kv_path((*path.segments, THIRD), path.namespace)
        await ask(engine, longer.plan("to compute it", None, GPU), max_tokens=1)
        third, second, *_ = longer.moves(GPU, HOST)
        assert await engine.carry_out(Orders((third, second))) == ()
        assert await engine.carry_out(Orders((longer.moves(HOST, DISK)[0],))) == ()
        # Remove the path from the engine's own cache, except for what the GPU tier holds.
        await engine.carry_out(Orders(forget=((path.namespace, "second"),), tiers=(GPU,)))
        answer = await ask(engine, longer.plan("why?", [GPU, GPU, HOST, DISK], GPU))
        assert answer.prefill.loaded == {GPU: 27 + 170, HOST: 113, DISK: 70}
        assert answer.tokens == await uncached_tokens(engine, longer, "why?")

    async def test_a_plan_may_save_directly_to_host_memory(self, engine, path):
        await ask(engine, path.plan("to compute it", None, HOST), max_tokens=1)
        await until_held(engine, path, HOST)
        assert len(await held(engine, HOST)) == 3
        assert await held(engine, GPU) == set()
        await forget_blocks(engine, path)
        answer = await ask(engine, path.plan("why?", HOST, HOST))
        assert answer.prefill.loaded == {HOST: path.tokens}
        assert answer.tokens == await uncached_tokens(engine, path, "why?")

    async def test_repeated_orders_do_nothing(self, engine, path):
        await put(engine, path, GPU)
        for _ in range(2):
            assert await engine.carry_out(Orders(path.moves(GPU, HOST))) == ()
        for _ in range(2):
            assert await engine.carry_out(Orders(path.moves(HOST, DISK))) == ()
        assert await held(engine, HOST) == set()
        assert len(await held(engine, DISK)) == 3

    async def test_a_plans_moves_finish_before_a_plan_that_needs_them(self, engine, path):
        await put(engine, path, GPU)
        other = kv_path((SYSTEM, THIRD))
        await ask(engine, other.plan("other", None, GPU, moves=path.moves(GPU, HOST)), max_tokens=1)
        # Asked at once: the request waits for copies that are still being written.
        answer = await ask(engine, path.plan("why?", HOST, GPU))
        assert answer.prefill.lost == ()
        assert answer.tokens == await uncached_tokens(engine, path, "why?")
        await engine.carry_out(Orders(other.moves(GPU, None)))

    async def test_a_plan_reports_at_its_end_what_it_has_written(self, engine, path):
        await put(engine, path, GPU)
        other = kv_path((SYSTEM, THIRD))
        # The last move finds its page taken, under a higher stamp.
        moves = path.moves(GPU, HOST)
        taken = msgspec.structs.replace(moves[2], pages=Pages(moves[0].pages.numbers[:1], 0))
        came = await generate(engine, other.plan("other", None, None, moves=(*moves[:2], taken)), Sampling(100))
        assert came.unwritten == (LostCopy(path.keys[0], HOST),)
        assert came.prefill.lost == ()

    async def test_free_pages_are_reported_with_their_stamps(self, engine, path):
        await put(engine, path, HOST)
        assert await engine.carry_out(Orders(path.moves(HOST, None))) == ()
        (host,) = [report for report in await engine.residency() if report.tier is HOST]
        assert host.highest_stamp >= max(pages.stamp for pages in path.pages)

    async def test_a_check_says_whether_a_copy_is_there(self, engine, path):
        await put(engine, path, HOST)
        await engine.carry_out(Orders((path.moves(HOST, None)[0],)))
        checks = path.moves(HOST, HOST, evict=False)
        assert await engine.carry_out(Orders(checks)) == (LostCopy(path.keys[2], HOST),)
        assert len(await held(engine, HOST)) == 2

    async def test_a_copy_to_host_memory_may_keep_the_one_in_the_gpu(self, engine, path):
        await put(engine, path, GPU)
        assert await engine.carry_out(Orders(path.moves(GPU, HOST, evict=False))) == ()
        assert await held(engine, GPU) == await held(engine, HOST) != set()


class TestOrders:
    async def test_orders_pass_the_queue(self, engine, path):
        """All slots are taken for long, and other requests wait for them. A deletion does not wait."""
        await put(engine, path, HOST)
        begun = asyncio.Semaphore(0)

        async def run(number: int) -> None:
            plan = kv_path((segment(f"short {number}", 20),)).plan("long answer", None, None)
            async with contextlib.aclosing(engine.stream(plan, Sampling(max_tokens=800))) as steps:
                async for _ in steps:
                    begun.release()

        running = [asyncio.create_task(run(number)) for number in range(SLOTS + 2)]
        for _ in range(SLOTS):
            await begun.acquire()
        assert await engine.carry_out(Orders(forget=((path.namespace, "first"),))) == ()
        assert await held(engine, HOST) == {(path.namespace, ("system",))}
        assert not any(task.done() for task in running)
        for task in running:
            task.cancel()
        await asyncio.wait(running)


class TestTenants:
    async def test_tenants_with_equal_documents_share_no_kv(self, engine, path):
        await put(engine, path, GPU)
        stranger = kv_path(path.segments)
        answer = await ask(engine, stranger.plan("why?", GPU, None))
        assert answer.prefill.cached_tokens == 0
        assert answer.tokens == await uncached_tokens(engine, path, "why?")

    async def test_pages_of_one_tenant_cannot_be_loaded_under_anothers_key(self, engine, path):
        await put(engine, path, HOST)
        thief = kv_path(path.segments)
        thief.pages = path.pages
        answer = await ask(engine, thief.plan("why?", HOST, None))
        assert answer.prefill.cached_tokens == 0
        assert answer.tokens == await uncached_tokens(engine, path, "why?")

    async def test_a_deleted_document_is_in_no_block(self, engine, path):
        """Not even in free blocks that vLLM's own cache would find, of a request that kept nothing."""
        await ask(engine, path.plan("to compute it", None, [GPU, None, None]), max_tokens=1)
        await engine.carry_out(Orders(forget=((path.namespace, "second"),)))
        answer = await ask(engine, path.plan("why?", [GPU, None, None], None), max_tokens=1)
        # The full blocks in front of the document are still cached; those that hold any of it are not.
        assert answer.prefill.cached_tokens == (27 + 170) // 32 * 32
        await engine.carry_out(Orders(forget=((path.namespace, "first"),)))
        assert await held(engine, GPU) == {(path.namespace, ("system",))}

    @pytest.mark.parametrize("tier", [HOST, DISK])
    async def test_a_deleted_document_is_in_no_tier(self, engine, path, tier):
        """By the tiers' own lists, whether the tree knows the document or not."""
        await put(engine, path, tier)
        assert await engine.carry_out(Orders(forget=((path.namespace, "first"),))) == ()
        assert await held(engine, tier) == {(path.namespace, ("system",))}
        assert await engine.carry_out(Orders(everything=True)) == ()
        assert await held(engine, tier) == set()


class TestSpeculativePlans:
    async def ended_after(self, engine, plan, seconds: float):
        """The steps of a plan that is ended this many seconds after it began."""
        steps = []

        async def read():
            steps.extend([step async for step in engine.stream(plan, Sampling(max_tokens=400))])

        reading = asyncio.create_task(read())
        await asyncio.wait({reading}, timeout=seconds)
        await engine.end(plan.query_id)
        await reading
        return steps

    async def test_nodes_computed_before_an_end_are_kept(self, engine):
        """The plan is ended later each time: in the middle of its prompt, and after its first token."""
        seen = set()
        for attempt in range(100):
            made = kv_path((SYSTEM, FIRST, segment(f"long {attempt}", 600)))
            plan = msgspec.structs.replace(made.plan("why?", None, GPU), speculative=True)
            *_, last = steps = await self.ended_after(engine, plan, attempt * 0.002)
            assert last.finish_reason == "ended"
            first = steps[0].prefill
            kept = {path for namespace, path in await held(engine, GPU) if namespace == made.namespace}
            if first is None:
                assert kept == set()
            elif first.prompt_tokens < plan.prompt.token_count:
                assert [step.tokens for step in steps] == [0]
                assert kept == {("system",), ("system", "first")}
                assert first.lost == (LostCopy(plan.nodes[-1].key, GPU),)
                # The kept nodes are as good as any others.
                answer = await ask(engine, made.plan("why?", [GPU, GPU, None], GPU))
                assert answer.prefill.cached_tokens >= 27 + 170
                assert answer.tokens == await uncached_tokens(engine, made, "why?")
                seen.add("some")
            else:
                assert len(kept) == 3
                seen.add("all")
            assert await engine.carry_out(Orders(forget=((made.namespace, "system"),))) == ()
            if seen == {"some", "all"}:
                return
        pytest.fail(f"expected ends with some and with all nodes kept, got {seen}")

    async def test_a_plan_ends_others_before_it_starts(self, engine, path):
        guess = msgspec.structs.replace(path.plan("a guess", None, GPU), speculative=True)
        stream = engine.stream(guess, Sampling(max_tokens=400))
        assert (await anext(stream)).tokens
        answer = await ask(engine, msgspec.structs.replace(path.plan("why?", GPU, GPU), ends=(guess.query_id,)))
        rest = [step async for step in stream]
        assert rest[-1].finish_reason == "ended"
        assert answer.tokens == await uncached_tokens(engine, path, "why?")

    async def test_ending_an_unknown_plan_does_nothing(self, engine, path):
        await engine.end("unknown")
        assert (await ask(engine, path.plan("why?", None, GPU))).tokens == await uncached_tokens(engine, path, "why?")
