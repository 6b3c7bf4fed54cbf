"""The real engine keeps the contract; abort, cache namespaces and death are vLLM's own."""

import asyncio
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path

import msgspec
import psutil
import pytest
import pytest_asyncio
from engine_contract import STORY, EngineContract, plan, steps_of, text_of, user
from platformdirs import user_cache_path
from processes import engines_under

from generator.engines.factory import GeneratorFactory
from generator.engines.vllm_engine import VllmEngine
from generator.models import ModelStore
from generator.prompts.layout import SegmentLayout
from generator.prompts.tokenizer import ModelTokenizer
from generator.settings import GeneratorSettings, KvSettings
from protocol.errors import ConfigError, EngineDied, EngineNotReady, InvalidRequest
from protocol.generation import Sampling
from protocol.kv import Orders
from protocol.plans import PrefillPlan
from protocol.prompts import Prompt, Segment, SegmentKind

pytestmark = pytest.mark.vllm

# Two places: a third request runs only when one of them is given up.
# In bfloat16, which some machines take by themselves, what is computed in other steps rounds to other tokens.
SETTINGS = GeneratorSettings(max_model_len=1024, max_num_seqs=2, cpu_threads=2, dtype="float32")


@pytest.fixture(scope="session")
def folder() -> Path:
    # The user's own cache, so that a machine converts the model once and not once a test run.
    return ModelStore(user_cache_path("ragtree")).resolve(SETTINGS.model)


@pytest.fixture(scope="session")
def layout(folder) -> SegmentLayout:
    return SegmentLayout(ModelTokenizer(folder), "Answer.", SETTINGS.max_model_len)


@pytest.fixture(scope="session")
def settings() -> Iterator[GeneratorSettings]:
    yield SETTINGS
    # An engine leaves it to whoever comes next.
    SETTINGS.kv.discard_host_memory()


@pytest.fixture
def new_engine(settings, folder):
    return lambda: VllmEngine(settings, folder)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def engine(settings, folder):
    engine = VllmEngine(settings, folder)
    await engine.start()
    yield engine
    await engine.close()


@pytest.mark.asyncio(loop_scope="session")
class TestVllmEngine(EngineContract):
    async def test_a_step_leaves_room_beside_a_long_prompt(self, engine):
        step = (await engine.info()).step
        assert 0 < step.prompt_tokens < step.tokens < SETTINGS.max_model_len

    async def test_an_aborted_stream_gives_its_place_up_within_steps(self, engine, layout):
        counted = 0
        third_began_at = None
        second_runs = asyncio.Event()

        async def read_second() -> None:
            nonlocal counted
            async with aclosing(engine.stream(plan(layout), Sampling(max_tokens=300))) as stream:
                async for step in stream:
                    counted += step.tokens
                    second_runs.set()
                    if third_began_at is not None:
                        return

        first = engine.stream(plan(layout), Sampling(max_tokens=300))
        await anext(first)
        second = asyncio.create_task(read_second())
        await second_runs.wait()
        await first.aclose()
        closed_at = counted
        async with aclosing(engine.stream(plan(layout), Sampling(max_tokens=300))) as third:
            await anext(third)
            third_began_at = counted
        await second
        # The abort, the third's own prefill and what was under way; its end alone would have come 290 tokens later.
        assert third_began_at - closed_at < 10

    async def test_tenants_do_not_share_the_prefix_cache(self, engine, layout):
        shared = plan(layout, STORY * 12, namespace="tenant-a")
        assert shared.prompt.token_count > 256
        foreign = PrefillPlan("foreign", "here", "tenant-b", shared.prompt)
        again = PrefillPlan("again", "here", "tenant-a", shared.prompt)
        cached = [
            (await steps_of(engine, asked, Sampling(max_tokens=1)))[0].prefill.cached_tokens
            for asked in (shared, foreign, again)
        ]
        assert cached[:2] == [0, 0]
        assert 128 <= cached[2] < shared.prompt.token_count

    async def test_what_an_unshared_plan_computes_nobody_finds(self, engine, layout):
        shared = plan(layout, STORY * 6, namespace="tenant-c")
        unshared = msgspec.structs.replace(shared, query_id="unshared", unshared=True)
        for asked in (unshared, shared):
            (step,) = await steps_of(engine, asked, Sampling(max_tokens=1))
            assert step.prefill.cached_tokens == 0

    async def test_a_probe_behind_cached_tokens_costs_less(self, engine):
        cold, warm = await engine.probe_prefill(0, 640), await engine.probe_prefill(512, 128)
        assert (warm.cached_tokens, warm.new_tokens) == (512, 128)
        assert warm.seconds < cold.seconds

    async def test_a_seed_repeats_a_sampled_answer(self, engine, layout):
        def asked(seed: int) -> Sampling:
            return Sampling(max_tokens=12, temperature=1.5, seed=seed)

        answers = [text_of(await steps_of(engine, plan(layout), asked(seed))) for seed in (1, 1, 2)]
        assert answers[0] == answers[1]
        assert answers[0] != answers[2]

    async def test_a_prompt_that_is_too_long_is_refused_and_harms_nothing(self, engine, layout):
        overlong = Prompt((Segment(SegmentKind.QUESTION, "k", (100,) * (SETTINGS.max_model_len + 1)),))
        with pytest.raises(InvalidRequest):
            await steps_of(engine, PrefillPlan("overlong", "here", "n", overlong), Sampling(max_tokens=1))
        await engine.ready()
        assert await steps_of(engine, plan(layout), Sampling(max_tokens=1))

    async def test_so_is_an_empty_one(self, engine, layout):
        empty = PrefillPlan("empty", "here", "n", Prompt(()))
        with pytest.raises(InvalidRequest):
            await steps_of(engine, empty, Sampling(max_tokens=1))
        assert await steps_of(engine, plan(layout), Sampling(max_tokens=1))


def test_the_converted_model_knows_its_chat_template(layout, folder):
    prompt = layout.lay_out([user("Why?")], [], 1)
    control = Segment(SegmentKind.SYSTEM, "", ModelTokenizer(folder).encode_template("<|im_start|>"))
    assert len(control.token_ids) == 1
    # system, user, assistant
    assert prompt.token_ids.count(control.token_ids[0]) == 3


def test_the_factory_makes_it(folder):
    factory = GeneratorFactory(SETTINGS, ModelStore(user_cache_path("ragtree")))
    assert isinstance(factory.engine(), VllmEngine)


@pytest.mark.parametrize(
    "wrong",
    [{"engine_args": {"no_such_argument": 1}}, {"max_model_len": 1_000_000}, {"dtype": "float7"}],
    ids=["unknown argument", "context longer than the model's", "unknown type"],
)
async def test_what_vllm_refuses_is_a_config_error(folder, wrong):
    with pytest.raises(ConfigError):
        await VllmEngine(GeneratorSettings(**wrong), folder).start()


async def test_so_is_a_folder_without_a_model(tmp_path):
    with pytest.raises(ConfigError):
        await VllmEngine(SETTINGS, tmp_path).start()


async def test_without_the_connector_a_deletion_empties_vllms_own_cache_under_what_runs(folder, layout, preemptions):
    engine = VllmEngine(SETTINGS.model_copy(update={"kv": KvSettings(enabled=False)}), folder)
    await engine.start()
    try:
        shared = plan(layout, STORY * 6, namespace="tenant")

        async def cached(query_id: str) -> int:
            asked = msgspec.structs.replace(shared, query_id=query_id)
            (step,) = await steps_of(engine, asked, Sampling(max_tokens=1))
            return step.prefill.cached_tokens

        expected = text_of(await steps_of(engine, shared, Sampling(max_tokens=40)))
        assert await cached("to find it") > 0
        assert await engine.carry_out(Orders(forget=(("tenant", "a document"),))) == ()
        assert await cached("to compute it anew") == 0
        before = preemptions()
        runs = msgspec.structs.replace(shared, query_id="runs")
        async with aclosing(engine.stream(runs, Sampling(max_tokens=40))) as stream:
            first = await anext(stream)
            assert await engine.carry_out(Orders(everything=True)) == ()
            assert text_of([first, *[step async for step in stream]]) == expected
        assert preemptions() > before
    finally:
        await engine.close()


async def test_when_its_process_dies_streams_end_and_it_says_so(new_engine, layout):
    others = engines_under(psutil.Process())
    dying = new_engine()
    await dying.start()
    (core,) = engines_under(psutil.Process()) - others
    async with aclosing(dying.stream(plan(layout), Sampling(max_tokens=300))) as stream:
        await anext(stream)
        core.kill()
        async with asyncio.timeout(60):
            with pytest.raises(EngineDied):
                async for _ in stream:
                    pass
    with pytest.raises(EngineDied):
        await dying.ready()
    with pytest.raises(EngineDied):
        await steps_of(dying, plan(layout), Sampling(max_tokens=1))
    await dying.close()
    with pytest.raises(EngineNotReady):
        await dying.ready()
