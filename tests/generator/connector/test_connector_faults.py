"""Faults under a real vLLM: a copy that is lost or damaged is computed again, and never changes an answer."""

import asyncio
import os
from pathlib import Path
from uuid import uuid4

import pytest
from engine_settings import small_engine
from kernel_limits import largest_file
from kv_plans import (
    DISK,
    GPU,
    HOST,
    PAGE_TOKENS,
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
from safetensors.numpy import load_file

from generator.engines.vllm_engine import VllmEngine
from generator.tiers.node_file import read_header
from generator.tiers.node_format import NodeFormat
from protocol.generation import Sampling
from protocol.kv import LostCopy, Orders, Paging

pytestmark = [pytest.mark.vllm, pytest.mark.asyncio(loop_scope="session")]


@pytest.fixture
def disk_dir(engine, kv_folder) -> Path:
    """The folder with the shared engine's files: that of its fingerprint."""
    (folder,) = filter(Path.is_dir, (kv_folder / "kv").iterdir())
    return folder


def file_of(disk_dir: Path, key: str) -> Path:
    (file,) = disk_dir.rglob(f"{key}*")
    return file


def as_of_another_model(file: Path, fingerprint: str) -> bytes:
    """The same file with valid checksums, but with another model's fingerprint."""
    page_bytes = load_file(file)["kv"].shape[1]
    with file.open("rb") as opened:
        header = read_header(opened.fileno(), NodeFormat(fingerprint, Paging(PAGE_TOKENS), page_bytes))
    other = NodeFormat(fingerprint[::-1], Paging(PAGE_TOKENS), page_bytes)
    return other.encode(header.node, header.checksums) + file.read_bytes()[header.data_at :]


class TestFaults:
    async def test_nodes_computed_behind_a_failed_load_are_correct(self, engine, path):
        """A node is missing in host memory, which is detected in the middle of the step."""
        await put(engine, path, HOST)
        longer = kv_path((*path.segments, THIRD), path.namespace, first_page=40)
        longer.pages = [*path.pages, longer.pages[-1]]
        await engine.carry_out(Orders((path.moves(HOST, None)[1],)))
        answer = await ask(engine, longer.plan("why?", [HOST, HOST, HOST, None], [None, None, None, HOST]))
        assert answer.tokens == await uncached_tokens(engine, longer, "why?")
        # Ask again with the saved copy, to check what was saved.
        await forget_blocks(engine, longer)
        await ask(engine, longer.plan("to compute it", None, [GPU, GPU, GPU, None]), max_tokens=1)
        await engine.carry_out(Orders(forget=((longer.namespace, "third"),), tiers=(GPU,)))
        again = await ask(engine, longer.plan("why?", [GPU, GPU, GPU, HOST], None))
        assert again.prefill.loaded == {GPU: path.tokens, HOST: 70}
        assert again.tokens == answer.tokens

    @pytest.mark.parametrize(
        "fault", ["bit flip", "truncated", "deleted", "another node's", "another model's", "another format"]
    )
    async def test_a_bad_file_is_reported_and_its_node_computed_again(self, engine, path, disk_dir, fault):
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
        # The node in front was loaded. The node behind could not be used, and its file is still there.
        assert answer.prefill.loaded.get(DISK, 0) <= 27
        assert answer.tokens == await uncached_tokens(engine, path, "why?")
        assert not list(disk_dir.rglob(f"{path.keys[1]}*"))
        assert file_of(disk_dir, path.keys[2])
        again = await ask(engine, path.plan("and?", GPU, GPU))
        assert again.prefill.cached_tokens == path.tokens

    async def test_a_plan_with_reused_pages_is_computed(self, engine, path):
        """The pages were handed out again meanwhile, under another stamp."""
        await put(engine, path, HOST)
        usurper = kv_path((SYSTEM, THIRD), first_page=path.pages[1].numbers[0])
        await ask(engine, usurper.plan("to compute it", None, HOST), max_tokens=1)
        await until_held(engine, usurper, HOST)
        answer = await ask(engine, path.plan("why?", HOST, None))
        assert LostCopy(path.keys[1], HOST) in answer.prefill.lost
        assert answer.tokens == await uncached_tokens(engine, path, "why?")
        # A late order with the old stamp must not delete the new content.
        await engine.carry_out(Orders(path.moves(HOST, None)))
        await forget_blocks(engine, usurper)
        other = await ask(engine, usurper.plan("why?", HOST, None))
        assert other.prefill.loaded == {HOST: usurper.tokens}
        assert other.tokens == await uncached_tokens(engine, usurper, "why?")
        await engine.carry_out(Orders(usurper.moves(HOST, None)))

    async def test_the_copy_in_host_memory_stays_if_the_disk_is_full(self, engine, path):
        big = kv_path((SYSTEM, *(segment(f"big {number}", 200) for number in range(2))))
        fill = [kv_path((segment(f"fill {number}", 256),), first_page=100) for number in range(5)]
        try:
            refused = []
            for one in (*fill, big):
                await ask(engine, one.plan("to compute it", None, GPU), max_tokens=1)
                assert await engine.carry_out(Orders(one.moves(GPU, HOST))) == ()
                refused += await engine.carry_out(Orders(one.moves(HOST, DISK)))
            assert refused
            assert {copy.tier for copy in refused} == {DISK}
            assert big.namespace in {namespace for namespace, _ in await held(engine, HOST)}
            assert (await ask(engine, big.plan("why?", HOST, None))).tokens == await uncached_tokens(
                engine, big, "why?"
            )
        finally:
            for one in (*fill, big):
                for tier in (GPU, HOST, DISK):
                    await engine.carry_out(Orders(one.moves(tier, None)))

    async def test_a_write_that_the_kernel_refuses_is_reported_and_leaves_no_file(self, engine, path, disk_dir):
        await put(engine, path, HOST)
        with largest_file(4096):
            refused = await engine.carry_out(Orders(path.moves(HOST, DISK)))
        assert set(refused) == {LostCopy(key, DISK) for key in path.keys}
        assert not [file for key in path.keys for file in disk_dir.rglob(f"*{key}*")]
        answer = await ask(engine, path.plan("why?", HOST, GPU))
        assert answer.prefill.loaded == {HOST: path.tokens}
        assert answer.tokens == await uncached_tokens(engine, path, "why?")
        # The next write succeeds.
        assert await engine.carry_out(Orders(path.moves(HOST, DISK))) == ()

    async def test_a_request_cancelled_while_it_loads_leaks_no_blocks(self, engine, path):
        await put(engine, path, DISK)
        for _ in range(3):
            stream = engine.stream(path.plan("why?", DISK, GPU), Sampling(max_tokens=4))
            step = asyncio.create_task(anext(stream))
            await asyncio.sleep(0)
            step.cancel()
            await asyncio.wait({step})
            await stream.aclose()
        answer = await ask(engine, path.plan("why?", DISK, GPU))
        assert answer.tokens == await uncached_tokens(engine, path, "why?")
        # All blocks are free: a prompt that needs nearly all of them runs.
        whole = kv_path([segment(f"part {number}", 240) for number in range(4)])
        assert (await ask(engine, whole.plan("fits?", None, None), max_tokens=2)).tokens

    async def test_held_blocks_are_released_before_a_request_starves(self, engine, preemptions):
        """Five paths are held and four long prompts arrive. All run, and released nodes are reported as lost."""
        held_paths = [kv_path((SYSTEM, segment(f"held {number}", 330))) for number in range(5)]
        for one in held_paths:
            await ask(engine, one.plan("to compute it", None, GPU), max_tokens=1)
        # Each has 603 tokens with its question: 19 of the 79 usable blocks, and 22 at its end. Answers are so long that
        # the first one still runs when the last request arrives.
        rush = [kv_path((SYSTEM, segment(f"rush {number}", 555))) for number in range(4)]
        before = preemptions()
        answers = await asyncio.gather(*(ask(engine, one.plan("now", None, None), max_tokens=80) for one in rush))
        # They do not fit even with all held blocks released, so vLLM has to preempt one of them.
        assert preemptions() > before
        lost = {copy for answer in answers for copy in answer.prefill.lost}
        last = await ask(engine, held_paths[0].plan("why?", GPU, GPU))
        lost |= set(last.prefill.lost)
        assert lost
        assert all(copy.tier is GPU for copy in lost)
        for one, answer in list(zip(rush, answers, strict=True))[:2]:
            alone = await ask(engine, kv_path(one.segments).plan("now", None, None), max_tokens=80)
            assert answer.tokens == alone.tokens
        assert last.tokens == await uncached_tokens(engine, held_paths[0], "why?")
        for one in held_paths:
            await engine.carry_out(Orders(one.moves(GPU, None)))


@pytest.mark.prove("generator/connector/", "generator/tiers/")
async def test_an_unwritable_folder_disables_the_disk_tier_only(tiny_model, tmp_path):
    settings = small_engine(tmp_path)
    settings.kv.disk_dir.write_text("a file in the place of the folder")
    engine = VllmEngine(settings, tiny_model)
    await engine.start()
    try:
        path = kv_path((SYSTEM, THIRD), namespace=uuid4().hex)
        await put(engine, path, HOST)
        refused = await engine.carry_out(Orders(path.moves(HOST, DISK)))
        assert {copy.tier for copy in refused} == {DISK}
        answer = await ask(engine, path.plan("why?", HOST, GPU))
        assert answer.prefill.loaded == {HOST: path.tokens}
        assert answer.tokens == await uncached_tokens(engine, path, "why?")
    finally:
        await engine.close()
