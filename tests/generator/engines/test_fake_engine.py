"""The fake engine keeps the engine contract and the configured speeds."""

import asyncio
from contextlib import aclosing

import msgspec
import pytest
from engine_contract import LONG, EngineContract, assert_closing_ends_streams, plan, steps_of, text_of
from model_folders import make_model_folder
from prompt_inputs import document, user

from generator.engines.fake_engine import FakeEngine
from generator.prompts.layout import SegmentLayout
from generator.prompts.tokenizer import ModelTokenizer
from generator.settings import FakeEngineSettings
from protocol.errors import EngineDied, EngineFailed, EngineNotReady, InvalidRequest
from protocol.generation import Sampling

MAX_MODEL_LEN = 4096


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory) -> ModelTokenizer:
    return ModelTokenizer(make_model_folder(tmp_path_factory.mktemp("fake")))


@pytest.fixture(scope="module")
def layout(tokenizer) -> SegmentLayout:
    return SegmentLayout(tokenizer, "Answer.", MAX_MODEL_LEN)


@pytest.fixture
def new_engine(tokenizer):
    speeds = FakeEngineSettings(prefill_tokens_per_s=20_000, decode_tokens_per_s=500)
    return lambda: FakeEngine("fake", tokenizer, MAX_MODEL_LEN, speeds)


@pytest.fixture
async def engine(new_engine):
    engine = new_engine()
    await engine.start()
    yield engine
    await engine.close()


class TestFakeEngine(EngineContract):
    async def test_closing_ends_running_streams_and_refuses_new_ones(self, engine, layout):
        await assert_closing_ends_streams(engine, layout)

    @pytest.mark.parametrize(
        ("sampling", "param"),
        [(Sampling(4, json_schema="{}"), "json_schema"), (Sampling(4, logprobs=True), "logprobs")],
    )
    async def test_it_refuses_what_needs_a_model(self, engine, sampling, param):
        with pytest.raises(InvalidRequest) as caught:
            await engine.check(sampling, "key")
        assert caught.value.param == param
        await engine.check(Sampling(4, temperature=1.0, logit_bias={1: 2.0}), "key")


class Clock:
    """Records sleeps. While ``held``, they end only after ``resume``."""

    def __init__(self) -> None:
        self.asked: list[float] = []
        self.sleeping = 0
        self.most_sleeping = 0
        self.held = False
        self._resumed = asyncio.Event()

    async def sleep(self, seconds: float) -> None:
        self.asked.append(seconds)
        self.sleeping += 1
        self.most_sleeping = max(self.most_sleeping, self.sleeping)
        try:
            if self.held:
                await self._resumed.wait()
            await asyncio.sleep(0)
        finally:
            self.sleeping -= 1

    def resume(self) -> None:
        self.held = False
        self._resumed.set()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def timed(tokenizer, clock) -> FakeEngine:
    speeds = FakeEngineSettings(prefill_tokens_per_s=1000, decode_tokens_per_s=50)
    engine = FakeEngine("fake", tokenizer, MAX_MODEL_LEN, speeds, clock.sleep, step_tokens=MAX_MODEL_LEN)
    await engine.start()
    return engine


async def test_a_stream_takes_the_configured_time(timed, clock, layout):
    prompt = plan(layout)
    await steps_of(timed, prompt, Sampling(max_tokens=4))
    assert clock.asked == [prompt.prompt.token_count / 1000, 1 / 50, 1 / 50, 1 / 50]


async def test_an_answer_repeats_the_first_document(timed, layout):
    steps = await steps_of(timed, plan(layout, "Größe: 5 €"), Sampling(max_tokens=LONG))
    assert text_of(steps) == "Größe: 5 €\n\n"
    assert steps[-1].finish_reason == "stop"


async def test_a_prompt_without_documents_is_answered(timed, layout, tokenizer):
    alone = plan(layout)
    prompt = SegmentLayout(tokenizer, "Answer.", MAX_MODEL_LEN).lay_out([user("Why?")], [], 1)
    steps = await steps_of(timed, type(alone)(alone.query_id, "here", "n", prompt), Sampling(max_tokens=3))
    assert sum(step.tokens for step in steps) == 3


async def test_prompts_are_prefilled_one_at_a_time(timed, clock, layout):
    await asyncio.gather(*(steps_of(timed, plan(layout), Sampling(max_tokens=1)) for _ in range(3)))
    assert len(clock.asked) == 3
    assert clock.most_sleeping == 1


async def test_closing_a_stream_ends_its_work(timed, clock, layout):
    async with aclosing(timed.stream(plan(layout), Sampling(max_tokens=LONG))) as stream:
        await anext(stream)
        await anext(stream)
    asked = len(clock.asked)
    assert clock.sleeping == 0
    await steps_of(timed, plan(layout), Sampling(max_tokens=1))
    assert len(clock.asked) == asked + 1


async def test_cancelling_a_prefill_frees_the_device(timed, clock, layout):
    clock.held = True
    first = asyncio.create_task(steps_of(timed, plan(layout), Sampling(max_tokens=1)))
    while not clock.sleeping:
        await asyncio.sleep(0)
    second = asyncio.create_task(steps_of(timed, plan(layout), Sampling(max_tokens=1)))
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    clock.resume()
    assert len(await second) == 1


async def test_a_plan_that_ends_another_gets_the_device_after_its_current_step(tokenizer, clock, layout):
    speeds = FakeEngineSettings(prefill_tokens_per_s=1000, decode_tokens_per_s=50)
    engine = FakeEngine("fake", tokenizer, MAX_MODEL_LEN, speeds, clock.sleep, step_tokens=100)
    await engine.start()
    clock.held = True
    guess = plan(layout)
    guessing = asyncio.create_task(steps_of(engine, guess, Sampling(max_tokens=LONG)))
    while not clock.sleeping:
        await asyncio.sleep(0)
    request = msgspec.structs.replace(plan(layout), ends=(guess.query_id, "unknown"))
    answering = asyncio.create_task(steps_of(engine, request, Sampling(max_tokens=1)))
    for _ in range(20):
        await asyncio.sleep(0)
    assert not guessing.done()
    clock.resume()
    (last,) = await guessing
    assert (last.text, last.tokens, last.prefill, last.finish_reason) == ("", 0, None, "ended")
    assert len(await answering) == 1
    tokens = request.prompt.token_count
    assert clock.most_sleeping == 1
    # One step of the guess, and all steps of the request.
    assert clock.asked == [0.1, *[0.1] * (tokens // 100), tokens % 100 / 1000]
    assert len(clock.asked) > 2


async def test_ending_a_stream_leaves_the_others(timed, clock, layout):
    ended, other = plan(layout), plan(layout)
    going_on = asyncio.create_task(steps_of(timed, other, Sampling(max_tokens=9)))
    async with aclosing(timed.stream(ended, Sampling(max_tokens=LONG))) as stream:
        first, second = await anext(stream), await anext(stream)
        await timed.end(ended.query_id)
        await timed.end("unknown")
        rest = [step async for step in stream]
    assert [step.finish_reason for step in (first, second, *rest)] == [None, None, "ended"]
    assert (rest[0].text, rest[0].tokens) == ("", 0)
    assert len(await going_on) == 9
    # The ended plan is forgotten, so it may be streamed again.
    assert len(await steps_of(timed, ended, Sampling(max_tokens=3))) == 3


async def test_a_stream_that_is_ended_while_it_waits_leaves_the_queue(timed, clock, layout):
    clock.held = True
    first, second = plan(layout), plan(layout)
    prefilling = asyncio.create_task(steps_of(timed, first, Sampling(max_tokens=1)))
    while not clock.sleeping:
        await asyncio.sleep(0)
    waiting = asyncio.create_task(steps_of(timed, second, Sampling(max_tokens=1)))
    await asyncio.sleep(0)
    await timed.end(second.query_id)
    assert [step.finish_reason for step in await waiting] == ["ended"]
    clock.resume()
    assert len(await prefilling) == 1
    assert len(clock.asked) == 1


async def test_ending_a_complete_stream_does_nothing(timed, layout):
    complete = plan(layout)
    async with aclosing(timed.stream(complete, Sampling(max_tokens=1))) as stream:
        assert (await anext(stream)).finish_reason == "length"
        await timed.end(complete.query_id)
        assert [step async for step in stream] == []


async def test_an_end_may_overtake_the_start_of_its_stream(timed, clock, layout):
    late = plan(layout)
    await timed.end(late.query_id)
    assert [step.finish_reason for step in await steps_of(timed, late, Sampling(max_tokens=LONG))] == ["ended"]
    assert clock.sleeping == 0
    assert len(await steps_of(timed, plan(layout), Sampling(max_tokens=3))) == 3


async def test_end_raises_on_a_closed_engine(timed):
    await timed.close()
    with pytest.raises(EngineNotReady):
        await timed.end("unknown")


async def test_info_names_the_fake_engine(timed):
    info = await timed.info()
    assert (info.engine, info.max_model_len) == ("fake", MAX_MODEL_LEN)


def test_the_factory_creates_it_with_the_shipped_tokenizer(tmp_path):
    from generator.engines.factory import GeneratorFactory
    from generator.models import ModelStore
    from generator.settings import GeneratorSettings

    factory = GeneratorFactory(GeneratorSettings(engine="fake"), ModelStore(tmp_path))
    assert isinstance(factory.engine(), FakeEngine)
    assert factory.layout().lay_out([user("Why?")], [document("one word")], 1).documents[0].token_ids
    assert list(tmp_path.iterdir()) == []


async def test_a_failed_engine_tells_what_it_computed_from_what_only_waited(engine, layout):
    computed, waiting = (engine.stream(plan(layout), Sampling(max_tokens=LONG)) for _ in range(2))
    async with aclosing(computed), aclosing(waiting):
        await anext(computed)
        engine.fail()
        with pytest.raises(EngineFailed):
            await anext(computed)
        with pytest.raises(EngineDied) as caught:
            await anext(waiting)
    assert not caught.value.begun
    with pytest.raises(EngineDied):
        await engine.ready()
