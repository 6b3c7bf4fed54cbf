"""Two tensor-parallel ranks, each of which keeps its own part of every page."""

import asyncio
from pathlib import Path

import pytest
import pytest_asyncio
from composed_prompts import DONATED, ComposedPrompts, of_lab
from engine_settings import serving_peers, small_engine
from kv_plans import DISK, GPU, HOST, PAGE_TOKENS, SYSTEM, THIRD, forget_blocks, held, kv_path, put, segment

from examine.measuring.engines import generate
from generator.engines.vllm_engine import VllmEngine
from protocol.generation import Sampling
from protocol.kv import LostCopy, Orders

pytestmark = [pytest.mark.prove("generator/", "protocol/"), pytest.mark.vllm, pytest.mark.asyncio(loop_scope="session")]

LONG, BEHIND = segment("long", 520), segment("behind", 150)
TIERS = (GPU, HOST, DISK)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("two-ranks")


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def engine(folder, tiny_model):
    """A started vLLM with two ranks and a tiny model."""
    settings = small_engine(folder)
    settings.engine_args |= {"tensor_parallel_size": 2, "async_scheduling": True}
    settings.kv.auxiliary_model = str(tiny_model)
    settings.kv.peers = serving_peers(folder)
    engine = VllmEngine(settings, tiny_model)
    await engine.start()
    yield engine
    await engine.close()


async def answer(engine, plan):
    """The prefill of a plan, and the tokens of its greedy answer with their logprobs."""
    generation = await generate(engine, plan, Sampling(8, logprobs=True))
    return generation.prefill, [
        (token.token_id, pytest.approx(token.logprob, abs=1e-4)) for token in generation.logprobs
    ]


async def uncached(engine, path, question: str = "why?"):
    return (await answer(engine, kv_path(path.segments).plan(question, None, None)))[1]


def files(folder: Path, rank: int, key: str) -> list[Path]:
    return list((folder / "kv" / f"rank-{rank}-of-2").rglob(f"{key}.*"))


async def test_answers_are_the_same_from_every_tier(engine, folder):
    for tier in TIERS:
        path = kv_path((SYSTEM, LONG, BEHIND))
        await put(engine, path, tier)
        prefill, tokens = await answer(engine, path.plan("why?", tier, GPU))
        assert prefill.loaded == {tier: path.tokens}
        assert prefill.lost == ()
        assert tokens == await uncached(engine, path)
        assert tokens != await uncached(engine, kv_path((SYSTEM, segment("another", 520), BEHIND)))
        if tier is DISK:
            parts = [file for rank in range(2) for file in files(folder, rank, path.keys[1])]
            assert len(parts) == 2
            assert parts[0].read_bytes() != parts[1].read_bytes()
        await engine.carry_out(Orders(everything=True))


@pytest.mark.parametrize("rank", [0, 1])
async def test_a_node_that_one_rank_has_lost_is_lost_on_all(engine, folder, rank):
    path = kv_path((SYSTEM, LONG, BEHIND))
    await put(engine, path, DISK)
    (file,) = files(folder, rank, path.keys[1])
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 4
    file.write_bytes(content)
    answers = await asyncio.gather(*(answer(engine, path.plan("why?", DISK, None)) for _ in range(2)))
    expected = await uncached(engine, path)
    lost = [copy for prefill, _ in answers for copy in prefill.lost]
    assert LostCopy(path.keys[1], DISK) in lost
    for prefill, tokens in answers:
        assert tokens == expected
        # One that comes late finds what the other has computed, in whole blocks.
        recomputed = prefill.loaded.get(GPU, 0) >= 27 + 520 - PAGE_TOKENS
        assert LostCopy(path.keys[1], DISK) in prefill.lost or prefill.loaded.get(DISK, 0) <= 27 or recomputed
    assert await held(engine, DISK) == {(path.namespace, ("system",)), (path.namespace, ("system", "long", "behind"))}
    assert files(folder, 1 - rank, path.keys[1]) == []
    await engine.carry_out(Orders(everything=True))


@pytest.mark.parametrize("rank", [0, 1])
async def test_a_node_that_one_rank_cannot_write_is_lost_on_all(engine, folder, rank):
    # Where the rank would create the file's folder, there is a file.
    (fingerprint,) = filter(Path.is_dir, (folder / "kv" / f"rank-{rank}-of-2").iterdir())
    path, obstacle = kv_path((SYSTEM, THIRD)), fingerprint
    # The system prompt's file needs a folder that is not in the way, and keys are random.
    while obstacle.exists() or path.keys[0][:2] == path.keys[1][:2]:
        path = kv_path((SYSTEM, THIRD))
        obstacle = fingerprint / path.keys[1][:2]
    obstacle.write_text("in the way")
    await put(engine, path, HOST)
    try:
        assert await engine.carry_out(Orders(path.moves(HOST, DISK, evict=False))) == (LostCopy(path.keys[1], DISK),)
    finally:
        obstacle.unlink()
    assert await held(engine, DISK) == {(path.namespace, ("system",))}
    assert files(folder, 1 - rank, path.keys[1]) == []
    await forget_blocks(engine, path)
    prefill, tokens = await answer(engine, path.plan("why?", HOST, None))
    assert prefill.loaded == {HOST: path.tokens}
    assert tokens == await uncached(engine, path)
    await engine.carry_out(Orders(everything=True))


async def test_a_node_that_only_one_rank_holds_is_deleted_when_the_tiers_are_listed(engine, folder):
    """As after a crash between the writes of two ranks."""
    path = kv_path((SYSTEM, THIRD))
    await put(engine, path, DISK)
    (file,) = files(folder, 1, path.keys[1])
    file.unlink()
    assert await held(engine, DISK) == {(path.namespace, ("system",))}
    assert await held(engine, DISK) == {(path.namespace, ("system",))}
    assert files(folder, 0, path.keys[1]) == []
    await engine.carry_out(Orders(everything=True))


class TestComposing:
    @pytest_asyncio.fixture(loop_scope="session", params=TIERS)
    async def prompts(self, engine, request):
        """Documents with KV of their own, put into a tier."""
        made = ComposedPrompts(kv_path((SYSTEM,)).namespace, request.param)
        await made.put(engine)
        yield made
        await engine.carry_out(Orders(everything=True))

    async def test_a_prompt_that_is_computed_again_whole_has_the_exact_answer(self, engine, prompts):
        prefill, tokens = await answer(engine, prompts.plan("why?", 1.0))
        assert tokens == await uncached(engine, prompts.whole)
        assert prefill.loaded == {prompts.tier: 27 + 170}
        assert (prefill.composed_tokens, prefill.recomputed_tokens) == (0, DONATED)

    @pytest.mark.parametrize("method", ["query", "none", *of_lab("cacheclip", "cacheblend", "epic", "random", "ape")])
    async def test_both_ranks_together_select_what_one_alone_does(self, engine, engine_of, prompts, method):
        share = 0.0 if method in {"none", "ape"} else 0.3
        prefill, tokens = await answer(engine, prompts.plan("why?", share, method))
        alone = ComposedPrompts(kv_path((SYSTEM,)).namespace, GPU)
        single = (await engine_of(True)).engine
        await alone.put(single)
        expected, its_tokens = await answer(single, alone.plan("why?", share, method))
        await single.carry_out(Orders(everything=True))
        assert tokens == its_tokens
        assert prefill.recomputed_tokens == expected.recomputed_tokens
        assert prefill.composed_tokens == expected.composed_tokens > 0

    async def test_a_prompt_that_deviates_more_than_its_bound_is_computed(self, engine, prompts):
        within = (await answer(engine, prompts.plan("why?", 0.5)))[0].deviation
        assert within > 0
        prefill, tokens = await answer(engine, prompts.plan("why?", 0.5, bound=0.99 * within))
        assert tokens == await uncached(engine, prompts.whole)
        assert (prefill.composed_tokens, prefill.recomputed_tokens) == (0, 0)


@pytest.mark.parametrize("rank", [0, 1])
async def test_a_donor_that_one_rank_has_lost_is_computed(engine, folder, rank):
    prompts = ComposedPrompts(kv_path((SYSTEM,)).namespace, DISK)
    await prompts.put(engine)
    lost = prompts.own[1].keys[1]
    (file,) = files(folder, rank, lost)
    file.write_bytes(file.read_bytes()[:-1])
    prefill, tokens = await answer(engine, prompts.plan("why?", 1.0))
    assert tokens == await uncached(engine, prompts.whole)
    assert prefill.lost == (LostCopy(lost, DISK),)
    assert prefill.recomputed_tokens == DONATED - len(prompts.own[1].segments[1].token_ids)
    await engine.carry_out(Orders(everything=True))
