"""Two real engines that lay out blocks differently share neutral pages of host memory and disk.

Both are vLLM's on a CPU, with the same kernels. One has its blocks as always, layer by layer. In the other one's, all
layers of a head are side by side. So they stand for engines on a CPU and on a GPU.
"""

from collections.abc import AsyncIterator
from typing import NamedTuple
from uuid import uuid4

import pytest
import pytest_asyncio
from chosen_layout import LAYOUT, ChosenLayout
from composed_prompts import DONATED, ComposedPrompts
from engine_settings import small_engine
from kv_plans import DISK, FIRST, GPU, HOST, SECOND, SYSTEM, held, kv_path, put

from examine.measuring.engines import generate
from generator.engines import vllm_engine
from generator.engines.vllm_engine import VllmEngine
from protocol.generation import PrefillResult, Sampling
from protocol.kv import Orders
from protocol.plans import PrefillPlan

pytestmark = [pytest.mark.prove("generator/", "protocol/"), pytest.mark.vllm, pytest.mark.asyncio(loop_scope="session")]

LAYOUTS = ("LBHNC", "BHLNC")
EXTENSION = f"{ChosenLayout.__module__}.{ChosenLayout.__qualname__}"


class Answer(NamedTuple):
    """The prefill of a plan, and the tokens and log probabilities of its greedy answer."""

    prefill: PrefillResult
    token_ids: list[int]
    logprobs: list[float]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def engines(tiny_model, tmp_path_factory) -> AsyncIterator[list[VllmEngine]]:
    """An engine for each layout, with one folder and one arena of host memory."""
    settings = small_engine(tmp_path_factory.mktemp("shared-layouts"))
    settings.kv.page_layout = "neutral"
    settings.engine_args["worker_extension_cls"] = EXTENSION
    started = []
    for layout in LAYOUTS:
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(vllm_engine, "WORKER_EXTENSION", EXTENSION)
            patched.setenv(LAYOUT, layout)
            started.append(VllmEngine(settings, tiny_model))
            await started[-1].start()
    yield started
    for engine in started:
        await engine.close()


@pytest.fixture(params=[(0, 1), (1, 0)], ids=["by layer to by head", "by head to by layer"])
def pair(request, engines) -> list[VllmEngine]:
    """The engine that saves, and the one that loads."""
    return [engines[number] for number in request.param]


async def answer(engine: VllmEngine, plan: PrefillPlan) -> Answer:
    generation = await generate(engine, plan, Sampling(8, logprobs=True))
    tokens = generation.logprobs
    return Answer(generation.prefill, [token.token_id for token in tokens], [token.logprob for token in tokens])


def assert_same(one: Answer, other: Answer) -> None:
    assert one.token_ids == other.token_ids
    assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)


async def test_the_engines_lay_out_blocks_differently_and_name_the_same_kv(engines):
    own = [await engine._parts().requests._llm.collective_rpc("own_layout") for engine in engines]
    assert own[0] != own[1]
    one, other = [(await engine.info()).kv for engine in engines]
    assert (one.fingerprint, one.page_bytes, one.shared) == (other.fingerprint, other.page_bytes, other.shared)


@pytest.mark.parametrize("tier", [HOST, DISK])
async def test_what_one_engine_saves_the_other_one_loads(pair, tier):
    saver, loader = pair
    path = kv_path((SYSTEM, FIRST, SECOND))
    await put(saver, path, tier)
    loaded = await answer(loader, path.plan("why?", tier, GPU))
    assert loaded.prefill.loaded == {tier: path.tokens}
    assert loaded.prefill.lost == ()
    assert_same(loaded, await answer(loader, kv_path(path.segments).plan("why?", None, None)))
    await forget(pair, path.namespace)


@pytest.mark.parametrize("tier", [HOST, DISK])
async def test_what_one_engine_saves_the_other_one_composes(pair, tier):
    saver, composer = pair
    prompts = ComposedPrompts(uuid4().hex, tier)
    await prompts.put(saver)
    direct = await answer(composer, prompts.plan("why?", 0.0, "none"))
    assert direct.prefill.composed_tokens == DONATED
    # As if the other engine had not been there.
    own = ComposedPrompts(uuid4().hex, GPU)
    await own.put(composer)
    assert_same(direct, await answer(composer, own.plan("why?", 0.0, "none")))
    await forget(pair, prompts.whole.namespace, own.whole.namespace)


async def forget(engines: list[VllmEngine], *namespaces: str) -> None:
    for engine in engines:
        orders = Orders(forget=tuple((namespace, "system") for namespace in namespaces))
        assert await engine.carry_out(orders) == ()
        assert {namespace for tier in (GPU, HOST, DISK) for namespace, _ in await held(engine, tier)}.isdisjoint(
            namespaces
        )
