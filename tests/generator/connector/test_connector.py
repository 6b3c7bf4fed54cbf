"""The connector inside a real vLLM: where a document's KV comes from never changes an answer, nor does a fault."""

import asyncio
import os
import signal
from pathlib import Path as FilePath
from uuid import uuid4

import msgspec
import psutil
import pytest
import pytest_asyncio
from kernel_limits import largest_file
from plans import DISK, GPU, HOST, PAGE_TOKENS, Path, ask, held, segment
from platformdirs import user_cache_path
from processes import engines_under
from safetensors.numpy import load_file

from generator.engines.vllm_engine import VllmEngine
from generator.models import ModelStore
from generator.settings import GeneratorSettings, KvSettings
from generator.tiers.node_file import NodeFormat
from protocol.errors import EngineDied
from protocol.generation import Sampling
from protocol.kv import LostCopy, Orders
from protocol.prompts import SegmentKind

pytestmark = [pytest.mark.vllm, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(150)]

# Memory for about five prompts of these tests: what does not fit has to be let go.
BLOCKS = 80
SYSTEM = segment("system", 27, SegmentKind.SYSTEM)
FIRST, SECOND, THIRD = segment("first", 170), segment("second", 113), segment("third", 70)


def settings(folder: FilePath) -> GeneratorSettings:
    kv = KvSettings(disk_dir=folder / "kv", host_gib=0.25, disk_gib=0.05, host_dir=folder)
    return GeneratorSettings(
        max_model_len=1024,
        max_num_seqs=4,
        dtype="float32",
        cpu_threads=2,
        kv=kv,
        engine_args={"num_gpu_blocks_override": BLOCKS},
    )


@pytest.fixture(scope="session")
def model() -> FilePath:
    return ModelStore(user_cache_path("ragtree")).resolve("smollm2-135m-instruct")


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def engine(model, tmp_path_factory):
    engine = VllmEngine(settings(tmp_path_factory.mktemp("connector")), model)
    await engine.start()
    yield engine
    await engine.close()


@pytest.fixture(scope="session")
def disk_dir(engine) -> FilePath:
    (folder,) = engine._settings.kv.disk_dir.iterdir()
    return folder


@pytest_asyncio.fixture(loop_scope="session")
async def path(engine):
    """A path that nobody knows yet; afterwards nothing of it is left anywhere."""
    made = Path((SYSTEM, FIRST, SECOND))
    yield made
    assert await engine.carry_out(Orders(forget=((made.namespace, "system"),))) == ()
    for tier in (GPU, HOST, DISK):
        assert made.namespace not in {namespace for namespace, _ in await held(engine, tier)}


async def forget_in_engine(engine, path: Path) -> None:
    assert await engine.carry_out(Orders(forget=((path.namespace, "system"),), blocks_only=True)) == ()


async def truth(engine, path: Path, question: str) -> str:
    """The answer without any cache: under a namespace that has none."""
    return (await ask(engine, Path(path.segments).plan(question, None, None))).text


async def put(engine, path: Path, tier) -> None:
    """Have the path's KV in one tier and nowhere else."""
    await ask(engine, path.plan("to compute it", None, GPU), max_tokens=1)
    if tier is not GPU:
        assert await engine.carry_out(Orders(path.moves(GPU, HOST))) == ()
    if tier is DISK:
        assert await engine.carry_out(Orders(path.moves(HOST, DISK))) == ()
    if tier is not GPU:
        await forget_in_engine(engine, path)


def file_of(disk_dir: FilePath, key: str) -> FilePath:
    (file,) = disk_dir.rglob(f"{key}*")
    return file


def as_of_another_model(file: FilePath, fingerprint: str) -> bytes:
    """The same file, whole and sealed, but for an engine whose KV is of no use to this one."""
    page_bytes = load_file(file)["kv"].shape[1]
    with file.open("rb") as opened:
        header = NodeFormat(fingerprint, PAGE_TOKENS, page_bytes).decode(opened.fileno())
    other = NodeFormat(fingerprint[::-1], PAGE_TOKENS, page_bytes)
    return other.encode(header.node, header.checksums) + file.read_bytes()[header.data_at :]


class TestTiers:
    @pytest.mark.parametrize("tier", [GPU, HOST, DISK])
    async def test_an_answer_is_the_same_from_every_tier(self, engine, path, tier):
        await put(engine, path, tier)
        answer = await ask(engine, path.plan("why?", tier, GPU))
        assert answer.prefill.loaded == {tier: path.tokens}
        assert answer.prefill.cached_tokens == path.tokens
        assert answer.prefill.prompt_tokens == path.tokens + 21
        assert answer.prefill.lost == ()
        assert answer.text == await truth(engine, path, "why?")

    async def test_a_path_may_lie_in_all_tiers_at_once(self, engine, path):
        longer = Path((*path.segments, THIRD), path.namespace)
        await ask(engine, longer.plan("to compute it", None, GPU), max_tokens=1)
        third, second, *_ = longer.moves(GPU, HOST)
        assert await engine.carry_out(Orders((third, second))) == ()
        assert await engine.carry_out(Orders((longer.moves(HOST, DISK)[0],))) == ()
        # Out of the engine's own cache, but for what the GPU tier holds.
        await engine.carry_out(Orders(forget=((path.namespace, "second"),), blocks_only=True))
        answer = await ask(engine, longer.plan("why?", [GPU, GPU, HOST, DISK], GPU))
        assert answer.prefill.loaded == {GPU: 27 + 170, HOST: 113, DISK: 70}
        assert answer.text == await truth(engine, longer, "why?")

    async def test_what_has_no_room_in_the_gpu_is_saved_straight_to_host_memory(self, engine, path):
        await ask(engine, path.plan("to compute it", None, HOST), max_tokens=1)
        assert len(await held(engine, HOST)) == 3
        assert await held(engine, GPU) == set()
        await forget_in_engine(engine, path)
        answer = await ask(engine, path.plan("why?", HOST, HOST))
        assert answer.prefill.loaded == {HOST: path.tokens}
        assert answer.text == await truth(engine, path, "why?")

    async def test_orders_that_come_twice_do_no_harm(self, engine, path):
        await put(engine, path, GPU)
        for _ in range(2):
            assert await engine.carry_out(Orders(path.moves(GPU, HOST))) == ()
        for _ in range(2):
            assert await engine.carry_out(Orders(path.moves(HOST, DISK))) == ()
        assert await held(engine, HOST) == set()
        assert len(await held(engine, DISK)) == 3

    async def test_moves_come_with_a_plan_and_are_over_before_what_needs_them(self, engine, path):
        await put(engine, path, GPU)
        other = Path((SYSTEM, THIRD))
        await ask(engine, other.plan("else", None, GPU, moves=path.moves(GPU, HOST)), max_tokens=1)
        # Asked at once: what is still being written is waited for.
        answer = await ask(engine, path.plan("why?", HOST, GPU))
        assert answer.prefill.lost == ()
        assert answer.text == await truth(engine, path, "why?")
        await engine.carry_out(Orders(other.moves(GPU, None)))

    async def test_a_copy_to_host_memory_may_leave_the_one_in_the_gpu(self, engine, path):
        await put(engine, path, GPU)
        assert await engine.carry_out(Orders(path.moves(GPU, HOST, evict=False))) == ()
        assert await held(engine, GPU) == await held(engine, HOST) != set()


class TestTenants:
    async def test_two_tenants_with_the_same_documents_share_no_kv(self, engine, path):
        await put(engine, path, GPU)
        stranger = Path(path.segments)
        answer = await ask(engine, stranger.plan("why?", GPU, None))
        assert answer.prefill.cached_tokens == 0
        assert answer.text == await truth(engine, path, "why?")

    async def test_pages_of_one_tenant_cannot_be_had_under_anothers_key(self, engine, path):
        await put(engine, path, HOST)
        thief = Path(path.segments)
        thief.pages = path.pages
        answer = await ask(engine, thief.plan("why?", HOST, None))
        assert answer.prefill.cached_tokens == 0
        assert answer.text == await truth(engine, path, "why?")

    async def test_a_deleted_document_is_in_no_block_any_more(self, engine, path):
        """Not even in blocks that vLLM's own cache would find, of a request that kept nothing."""
        await ask(engine, path.plan("to compute it", None, [GPU, None, None]), max_tokens=1)
        await engine.carry_out(Orders(forget=((path.namespace, "second"),)))
        answer = await ask(engine, path.plan("why?", [GPU, None, None], None), max_tokens=1)
        # Whole blocks in front of it are still there, those that it lies in are not.
        assert answer.prefill.cached_tokens == (27 + 170) // 32 * 32
        await engine.carry_out(Orders(forget=((path.namespace, "first"),)))
        assert await held(engine, GPU) == {(path.namespace, ("system",))}

    @pytest.mark.parametrize("tier", [HOST, DISK])
    async def test_nor_is_it_in_any_tier(self, engine, path, tier):
        """By the tiers' own account, whether the tree knows of it or not."""
        await put(engine, path, tier)
        assert await engine.carry_out(Orders(forget=((path.namespace, "first"),))) == ()
        assert await held(engine, tier) == {(path.namespace, ("system",))}
        assert await engine.carry_out(Orders(everything=True)) == ()
        assert await held(engine, tier) == set()


class TestFaults:
    async def test_what_was_computed_behind_a_load_that_failed_is_kept_as_it_is_right(self, engine, path):
        """A page of host memory is missing, which shows in the middle of the step; what is saved must not be of it."""
        await put(engine, path, HOST)
        longer = Path((*path.segments, THIRD), path.namespace, first_page=40)
        longer.pages = [*path.pages, longer.pages[-1]]
        await engine.carry_out(Orders((path.moves(HOST, None)[1],)))
        answer = await ask(engine, longer.plan("why?", [HOST, HOST, HOST, None], [None, None, None, HOST]))
        assert answer.text == await truth(engine, longer, "why?")
        # Again from the other copies, so that what was saved is what is read.
        await forget_in_engine(engine, longer)
        await ask(engine, longer.plan("to compute it", None, [GPU, GPU, GPU, None]), max_tokens=1)
        await engine.carry_out(Orders(forget=((longer.namespace, "third"),), blocks_only=True))
        again = await ask(engine, longer.plan("why?", [GPU, GPU, GPU, HOST], None))
        assert again.prefill.loaded == {GPU: path.tokens, HOST: 70}
        assert again.text == answer.text

    @pytest.mark.parametrize(
        "fault", ["bit flip", "truncated", "deleted", "another node's", "another model's", "no file of ours"]
    )
    async def test_a_bad_file_is_computed_anew_and_told(self, engine, path, disk_dir, fault):
        await put(engine, path, DISK)
        file = file_of(disk_dir, path.keys[1])
        content = bytearray(file.read_bytes())
        if fault == "bit flip":
            content[len(content) // 2] ^= 4
            file.write_bytes(content)
        elif fault == "truncated":
            os.truncate(file, len(content) // 2)
        elif fault == "deleted":
            file.unlink()
        elif fault == "another node's":
            file.write_bytes(file_of(disk_dir, path.keys[2]).read_bytes())
        elif fault == "another model's":
            file.write_bytes(as_of_another_model(file, fingerprint=disk_dir.name))
        else:
            file.write_bytes(b"{}" * 5000)
        answer = await ask(engine, path.plan("why?", DISK, GPU))
        assert LostCopy(path.keys[1], DISK) in answer.prefill.lost
        # What stands in front of it was loaded; what stands behind it is of no use, and still there.
        assert answer.prefill.loaded.get(DISK, 0) <= 27
        assert answer.text == await truth(engine, path, "why?")
        assert not list(disk_dir.rglob(f"{path.keys[1]}*"))
        assert file_of(disk_dir, path.keys[2])
        again = await ask(engine, path.plan("and?", GPU, GPU))
        assert again.prefill.cached_tokens == path.tokens

    async def test_a_plan_that_names_pages_of_others_is_computed(self, engine, path):
        """They were handed out again meanwhile: the stamp is another one."""
        await put(engine, path, HOST)
        usurper = Path((SYSTEM, THIRD), first_page=path.pages[1].numbers[0])
        await ask(engine, usurper.plan("to compute it", None, HOST), max_tokens=1)
        answer = await ask(engine, path.plan("why?", HOST, None))
        assert LostCopy(path.keys[1], HOST) in answer.prefill.lost
        assert answer.text == await truth(engine, path, "why?")
        # A late order for the old stamp must not touch what lies there now.
        await engine.carry_out(Orders(path.moves(HOST, None)))
        await forget_in_engine(engine, usurper)
        other = await ask(engine, usurper.plan("why?", HOST, None))
        assert other.prefill.loaded == {HOST: usurper.tokens}
        assert other.text == await truth(engine, usurper, "why?")
        await engine.carry_out(Orders(usurper.moves(HOST, None)))

    async def test_a_full_disk_refuses_and_the_copy_in_host_memory_stays(self, engine, path):
        big = Path((SYSTEM, *(segment(f"big {number}", 200) for number in range(2))))
        fill = [Path((segment(f"fill {number}", 256),), first_page=100) for number in range(5)]
        try:
            refused = []
            for one in (*fill, big):
                await ask(engine, one.plan("to compute it", None, GPU), max_tokens=1)
                assert await engine.carry_out(Orders(one.moves(GPU, HOST))) == ()
                refused += await engine.carry_out(Orders(one.moves(HOST, DISK)))
            assert refused
            assert {copy.tier for copy in refused} == {DISK}
            assert big.namespace in {namespace for namespace, _ in await held(engine, HOST)}
            assert (await ask(engine, big.plan("why?", HOST, None))).text == await truth(engine, big, "why?")
        finally:
            for one in (*fill, big):
                for tier in (GPU, HOST, DISK):
                    await engine.carry_out(Orders(one.moves(tier, None)))

    async def test_a_file_that_the_kernel_cuts_short_is_told_and_leaves_nothing(self, engine, path, disk_dir):
        await put(engine, path, HOST)
        with largest_file(4096):
            refused = await engine.carry_out(Orders(path.moves(HOST, DISK)))
        assert set(refused) == {LostCopy(key, DISK) for key in path.keys}
        assert not [file for key in path.keys for file in disk_dir.rglob(f"*{key}*")]
        answer = await ask(engine, path.plan("why?", HOST, GPU))
        assert answer.prefill.loaded == {HOST: path.tokens}
        assert answer.text == await truth(engine, path, "why?")
        # The next one is written as ever.
        assert await engine.carry_out(Orders(path.moves(HOST, DISK))) == ()

    async def test_a_request_given_up_while_it_loads_leaves_nothing_behind(self, engine, path):
        await put(engine, path, DISK)
        for _ in range(3):
            stream = engine.stream(path.plan("why?", DISK, GPU), Sampling(max_tokens=4))
            step = asyncio.create_task(anext(stream))
            await asyncio.sleep(0)
            step.cancel()
            await asyncio.wait({step})
            await stream.aclose()
        answer = await ask(engine, path.plan("why?", DISK, GPU))
        assert answer.text == await truth(engine, path, "why?")
        # All blocks can still be had: a prompt of nearly all of them runs.
        whole = Path([segment(f"part {number}", 240) for number in range(4)])
        assert (await ask(engine, whole.plan("fits?", None, None), max_tokens=2)).text

    async def test_held_blocks_go_before_a_request_starves(self, engine, preemptions):
        """Five paths are held, four long prompts come at once: they run, and what went is told."""
        held_paths = [Path((SYSTEM, segment(f"held {number}", 330))) for number in range(5)]
        for one in held_paths:
            await ask(engine, one.plan("to compute it", None, GPU), max_tokens=1)
        # 603 tokens each with the question: 19 blocks of the 79 that there are, and one more after five tokens.
        rush = [Path((SYSTEM, segment(f"rush {number}", 555))) for number in range(4)]
        before = preemptions()
        answers = await asyncio.gather(*(ask(engine, one.plan("now", None, None), max_tokens=24) for one in rush))
        # With every block that was held they still do not fit: one of them has to stop half done, and begin anew.
        assert preemptions() > before
        lost = {copy for answer in answers for copy in answer.prefill.lost}
        last = await ask(engine, held_paths[0].plan("why?", GPU, GPU))
        lost |= set(last.prefill.lost)
        assert lost
        assert all(copy.tier is GPU for copy in lost)
        for one, answer in list(zip(rush, answers, strict=True))[:2]:
            alone = await ask(engine, Path(one.segments).plan("now", None, None), max_tokens=24)
            assert answer.text == alone.text
        assert last.text == await truth(engine, held_paths[0], "why?")
        for one in held_paths:
            await engine.carry_out(Orders(one.moves(GPU, None)))


async def test_a_killed_engine_leaves_only_whole_nodes(model, tmp_path):
    """SIGKILL in the middle of a save; the next engine serves what was published, and nothing else."""
    before = engines_under(psutil.Process())
    first = VllmEngine(settings(tmp_path), model)
    await first.start()
    (core,) = engines_under(psutil.Process()) - before
    saved = Path((SYSTEM, THIRD), namespace="saved")
    await put(first, saved, HOST)
    assert await first.carry_out(Orders(saved.moves(HOST, DISK, evict=False))) == ()
    lost = Path((SYSTEM, FIRST, SECOND), namespace="lost", first_page=50)
    await ask(first, lost.plan("to compute it", None, GPU), max_tokens=1)
    await first.carry_out(Orders(lost.moves(GPU, HOST)))
    saving = asyncio.create_task(first.carry_out(Orders(lost.moves(HOST, DISK))))
    (folder,) = (tmp_path / "kv").iterdir()
    while not [file for file in folder.rglob("*") if file.is_file() and file.suffix != ".safetensors"]:
        assert not saving.done(), "it was saved before it could be killed"
        await asyncio.sleep(0)
    os.kill(core.pid, signal.SIGKILL)
    with pytest.raises(EngineDied):
        await saving
    await first.close()

    second = VllmEngine(settings(tmp_path), model)
    await second.start()
    try:
        assert second._settings.kv.host_file.exists()
        for tier in (HOST, DISK):
            assert {("saved", ("system",)), ("saved", ("system", "third"))} <= await held(second, tier)
        assert await held(second, GPU) == set()
        for tier in (HOST, DISK):
            answer = await ask(second, saved.plan(f"from {tier}?", tier, None))
            assert answer.prefill.loaded == {tier: saved.tokens}
            assert answer.text == await truth(second, saved, f"from {tier}?")
            await forget_in_engine(second, saved)
        whole = {path for namespace, path in await held(second, DISK) if namespace == "lost"}
        answer = await ask(second, lost.plan("why?", DISK, None))
        depth = next((n for n in range(3) if tuple(s.key for s in lost.segments[: n + 1]) not in whole), 3)
        assert answer.prefill.cached_tokens == sum(len(s.token_ids) for s in lost.segments[:depth])
        assert answer.text == await truth(second, lost, "why?")
        assert not [file for file in folder.rglob("*") if file.is_file() and file.suffix != ".safetensors"]
    finally:
        await second.close()


async def test_a_folder_that_cannot_be_written_costs_the_disk_tier_alone(model, tmp_path):
    made = settings(tmp_path)
    made.kv.disk_dir.write_text("a file stands where the folder should be")
    engine = VllmEngine(made, model)
    await engine.start()
    try:
        path = Path((SYSTEM, THIRD), namespace=uuid4().hex)
        await put(engine, path, HOST)
        refused = await engine.carry_out(Orders(path.moves(HOST, DISK)))
        assert {copy.tier for copy in refused} == {DISK}
        answer = await ask(engine, path.plan("why?", HOST, GPU))
        assert answer.prefill.loaded == {HOST: path.tokens}
        assert answer.text == await truth(engine, path, "why?")
    finally:
        await engine.close()


class TestSpeculativePlans:
    async def ended_after(self, engine, plan, seconds: float):
        """The steps of a plan that is ended so long after it began."""
        steps = []

        async def read():
            steps.extend([step async for step in engine.stream(plan, Sampling(max_tokens=400))])

        reading = asyncio.create_task(read())
        await asyncio.wait({reading}, timeout=seconds)
        await engine.end(plan.query_id)
        await reading
        return steps

    async def test_what_was_computed_by_the_end_of_a_step_is_kept(self, engine):
        """Ended ever later: in the middle of the prompt, and after its first token."""
        seen = set()
        for attempt in range(100):
            made = Path((SYSTEM, FIRST, segment(f"long {attempt}", 600)))
            plan = msgspec.structs.replace(made.plan("why?", None, GPU), speculative=True)
            *_, last = steps = await self.ended_after(engine, plan, attempt * 0.2)
            assert last.finish_reason == "ended"
            first = steps[0].prefill
            kept = {path for namespace, path in await held(engine, GPU) if namespace == made.namespace}
            if first is None:
                assert kept == set()
            elif first.prompt_tokens < plan.prompt.token_count:
                assert [step.tokens for step in steps] == [0]
                assert kept == {("system",), ("system", "first")}
                assert first.lost == (LostCopy(plan.nodes[-1].key, GPU),)
                # It is as good as any other.
                answer = await ask(engine, made.plan("why?", [GPU, GPU, None], GPU))
                assert answer.prefill.cached_tokens >= 27 + 170
                assert answer.text == await truth(engine, made, "why?")
                seen.add("a part")
            else:
                assert len(kept) == 3
                seen.add("all")
            assert await engine.carry_out(Orders(forget=((made.namespace, "system"),))) == ()
            if seen == {"a part", "all"}:
                return
        pytest.fail(f"what was seen is {seen}")

    async def test_a_plan_ends_others_before_it_begins(self, engine, path):
        guess = msgspec.structs.replace(path.plan("a guess", None, GPU), speculative=True)
        stream = engine.stream(guess, Sampling(max_tokens=400))
        assert (await anext(stream)).tokens
        answer = await ask(engine, msgspec.structs.replace(path.plan("why?", GPU, GPU), ends=(guess.query_id,)))
        rest = [step async for step in stream]
        assert rest[-1].finish_reason == "ended"
        assert answer.text == await truth(engine, path, "why?")

    async def test_to_end_what_does_not_run_does_nothing(self, engine, path):
        await engine.end("nobody")
        assert (await ask(engine, path.plan("why?", None, GPU))).text == await truth(engine, path, "why?")
