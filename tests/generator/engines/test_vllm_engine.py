"""The real engine keeps the engine contract. Aborts and cache namespaces are vLLM's own."""

import asyncio
import json
from contextlib import aclosing

import msgspec
import pytest
from engine_contract import STORY, EngineContract, plan, steps_of, text_of
from engine_settings import SLOTS, STEPS, small_engine
from platformdirs import user_cache_path
from prompt_inputs import user

from generator.engines.factory import GeneratorFactory
from generator.engines.vllm_engine import VllmEngine
from generator.engines.vllm_sampling import penalised
from generator.models import ModelStore
from generator.prompts.tokenizer import ModelTokenizer
from generator.settings import GeneratorSettings
from protocol.errors import ConfigError, InvalidRequest
from protocol.generation import Sampling, StepBudget
from protocol.kv import Orders
from protocol.plans import PrefillPlan
from protocol.prompts import Prompt, Segment, SegmentKind

pytestmark = pytest.mark.vllm


@pytest.fixture
def new_engine(model, tmp_path):
    return lambda: VllmEngine(small_engine(tmp_path), model)


@pytest.mark.asyncio(loop_scope="session")
class TestVllmEngine(EngineContract):
    async def test_it_tells_what_a_step_computes(self, engine):
        step = (await engine.info()).step
        assert step == StepBudget(STEPS["max_num_batched_tokens"], STEPS["long_prefill_token_threshold"])

    async def test_an_aborted_stream_frees_its_slot_within_a_few_steps(self, engine, layout):
        """All slots are taken. One stream is closed, and the next one starts long before the others end."""
        counted = 0
        next_began_at = None
        running = [asyncio.Event() for _ in range(SLOTS - 1)]

        async def read(runs: asyncio.Event) -> None:
            nonlocal counted
            async with aclosing(engine.stream(plan(layout), Sampling(max_tokens=300))) as stream:
                async for step in stream:
                    if runs is running[0]:
                        counted += step.tokens
                    runs.set()
                    if next_began_at is not None:
                        return

        first = engine.stream(plan(layout), Sampling(max_tokens=300))
        await anext(first)
        others = [asyncio.create_task(read(runs)) for runs in running]
        for runs in running:
            await runs.wait()
        await first.aclose()
        closed_at = counted
        async with aclosing(engine.stream(plan(layout), Sampling(max_tokens=300))) as following:
            await anext(following)
            next_began_at = counted
        await asyncio.gather(*others)
        # This covers the abort, the next stream's prefill and the current step. The end of another stream alone would
        # come some 290 tokens later.
        assert next_began_at - closed_at < 10

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

    async def test_kv_of_an_unshared_plan_is_never_found(self, engine, layout):
        shared = plan(layout, STORY * 6, namespace="tenant-c")
        unshared = msgspec.structs.replace(shared, query_id="unshared", unshared=True)
        for asked in (unshared, shared):
            (step,) = await steps_of(engine, asked, Sampling(max_tokens=1))
            assert step.prefill.cached_tokens == 0

    async def test_a_probe_behind_cached_tokens_takes_less_time(self, engine):
        cold, warm = await engine.probe_prefill(0, 640), await engine.probe_prefill(512, 128)
        assert (warm.cached_tokens, warm.new_tokens) == (512, 128)
        assert warm.seconds < cold.seconds

    async def test_a_seed_repeats_a_sampled_answer(self, engine, layout):
        def asked(seed: int) -> Sampling:
            return Sampling(max_tokens=12, temperature=1.5, seed=seed)

        answers = [text_of(await steps_of(engine, plan(layout), asked(seed))) for seed in (1, 1, 2)]
        assert answers[0] == answers[1]
        assert answers[0] != answers[2]

    async def test_an_answer_follows_its_schema(self, engine, layout):
        name = {"type": "string", "maxLength": 12}
        years = {"type": "integer", "minimum": 1, "maximum": 99}
        schema = json.dumps(
            {
                "type": "object",
                "properties": {"name": name, "years": years},
                "required": ["name", "years"],
                "additionalProperties": False,
            }
        )
        answer = json.loads(text_of(await steps_of(engine, plan(layout), Sampling(80, json_schema=schema))))
        assert list(answer) == ["name", "years"]
        assert isinstance(answer["name"], str)
        assert 1 <= answer["years"] <= 99

    @pytest.mark.parametrize(
        "schema",
        [
            {"type": "nonsense"},
            {"$ref": "#/nowhere"},
            {"type": "string", "pattern": "("},
            {"type": "array", "items": {"type": "string"}, "uniqueItems": True},
        ],
    )
    async def test_a_schema_that_vllm_refuses_is_an_invalid_request(self, engine, layout, schema):
        sampling = Sampling(4, json_schema=json.dumps(schema))
        with pytest.raises(InvalidRequest) as caught:
            await engine.check(sampling, "key")
        assert caught.value.param == "json_schema"
        assert ".cc" not in caught.value.message
        with pytest.raises(InvalidRequest):
            await steps_of(engine, plan(layout), sampling)
        assert await steps_of(engine, plan(layout), Sampling(max_tokens=1))

    async def test_a_schema_that_no_answer_follows_is_an_invalid_request(self, engine, layout):
        sampling = Sampling(4, json_schema='{"$ref": "#"}')
        with pytest.raises(InvalidRequest, match="no answer"):
            await engine.check(sampling, "key")
        with pytest.raises(InvalidRequest):
            await steps_of(engine, plan(layout), sampling)
        assert await steps_of(engine, plan(layout), Sampling(max_tokens=1))

    @pytest.mark.parametrize(
        "schema",
        [
            pytest.param({"type": "string", "pattern": "(" * 30_000 + "a" + ")" * 30_000}, id="nested parentheses"),
            # It takes all the time that a grammar gets.
            pytest.param(
                {"type": "object", "properties": {f"p{number}": {"type": "string"} for number in range(3_000)}},
                id="optional properties",
                marks=pytest.mark.prove("generator/grammars/", "generator/engines/"),
            ),
        ],
    )
    async def test_a_schema_of_unbounded_cost_is_refused_while_other_streams_go_on(self, engine, layout, schema):
        refused = asyncio.Event()

        async def hostile() -> None:
            with pytest.raises(InvalidRequest, match="schema is refused") as caught:
                await steps_of(engine, plan(layout), Sampling(4, json_schema=json.dumps(schema)))
            assert caught.value.param == "json_schema"
            refused.set()

        async with aclosing(engine.stream(plan(layout), Sampling(1000, ignore_eos=True))) as other:
            await anext(other)
            attack = asyncio.create_task(hostile())
            async for _ in other:
                if refused.is_set():
                    break
            await attack
        assert await steps_of(engine, plan(layout), Sampling(max_tokens=1))

    @pytest.mark.parametrize(
        ("sampling", "param"),
        [
            (Sampling(4, logit_bias={10**6: 1.0}), "logit_bias"),
            (Sampling(4, logprobs=True, alternatives=21), "logprobs"),
        ],
    )
    async def test_a_check_names_what_vllm_refuses(self, engine, sampling, param):
        with pytest.raises(InvalidRequest) as caught:
            await engine.check(sampling, "key")
        assert caught.value.param == param

    async def test_sampling_parameters_reach_vllm(self, engine, layout):
        greedy = text_of(await steps_of(engine, plan(layout), Sampling(12)))
        biased = text_of(await steps_of(engine, plan(layout), Sampling(4, logit_bias={42: 100.0})))
        assert biased == 4 * biased[0]
        for only_the_best in (Sampling(12, 2.0, top_k=1, seed=1), Sampling(12, 2.0, min_p=1.0, seed=1)):
            assert text_of(await steps_of(engine, plan(layout), only_the_best)) == greedy
        looped = Sampling(24, logit_bias={42: 20.0}, frequency_penalty=2.0)
        assert len(set(text_of(await steps_of(engine, plan(layout), looped)))) > 1

    async def test_a_sampling_without_a_frequency_penalty_has_the_configured_one(self, engine, layout, monkeypatch):
        # The shared engine has none.
        monkeypatch.setattr(engine, "_settings", engine._settings.model_copy(update={"frequency_penalty": 2.0}))
        looped = Sampling(24, logit_bias={42: 20.0})
        assert len(set(text_of(await steps_of(engine, plan(layout), looped)))) > 1
        without = msgspec.structs.replace(looped, frequency_penalty=0.0)
        assert len(set(text_of(await steps_of(engine, plan(layout), without)))) == 1

    async def test_tokens_have_their_texts_and_as_many_alternatives_as_asked_for(self, engine, layout):
        steps = await steps_of(engine, plan(layout), Sampling(6, logprobs=True, alternatives=1))
        tokens = [token for step in steps for token in step.logprobs]
        assert "".join(token.texts[token.token_id] for token in tokens) == text_of(steps)
        # Greedy tokens are their own best alternatives.
        assert [list(token.alternatives) for token in tokens] == [[token.token_id] for token in tokens]

    async def test_a_prompt_beyond_the_context_is_an_invalid_request(self, engine, layout):
        max_model_len = (await engine.info()).max_model_len
        overlong = Prompt((Segment(SegmentKind.QUESTION, "k", (100,) * (max_model_len + 1)),))
        with pytest.raises(InvalidRequest):
            await steps_of(engine, PrefillPlan("overlong", "here", "n", overlong), Sampling(max_tokens=1))
        await engine.ready()
        assert await steps_of(engine, plan(layout), Sampling(max_tokens=1))

    async def test_an_empty_prompt_is_an_invalid_request(self, engine, layout):
        empty = PrefillPlan("empty", "here", "n", Prompt(()))
        with pytest.raises(InvalidRequest):
            await steps_of(engine, empty, Sampling(max_tokens=1))
        assert await steps_of(engine, plan(layout), Sampling(max_tokens=1))


def test_the_converted_model_has_its_chat_template(layout, model):
    prompt = layout.lay_out([user("Why?")], [], 1)
    control = Segment(SegmentKind.SYSTEM, "", ModelTokenizer(model).encode_template("<|im_start|>"))
    assert len(control.token_ids) == 1
    # One for each of system, user and assistant.
    assert prompt.token_ids.count(control.token_ids[0]) == 3


def test_the_factory_creates_it():
    factory = GeneratorFactory(GeneratorSettings(), ModelStore(user_cache_path("ragtree")))
    assert isinstance(factory.engine(), VllmEngine)


@pytest.mark.parametrize(
    ("settings", "penalty"),
    [
        ({}, 0.5),
        ({"frequency_penalty": 0.0}, 0.0),
        ({"model": "a folder"}, None),
        ({"model": "a folder", "frequency_penalty": 1}, 1),
    ],
)
def test_only_the_shipped_model_has_a_frequency_penalty_by_default(settings, penalty, monkeypatch, tmp_path):
    made = []
    monkeypatch.setattr("generator.engines.factory.VllmEngine", lambda settings, *_: made.append(settings))
    monkeypatch.setattr(ModelStore, "resolve", lambda *_: tmp_path)
    GeneratorFactory(GeneratorSettings(**settings), ModelStore(tmp_path)).engine()
    assert made[0].frequency_penalty == penalty


def test_answers_in_json_and_those_with_a_penalty_of_their_own_keep_theirs():
    for sampling in (Sampling(4, json_schema="{}"), Sampling(4, frequency_penalty=0.0)):
        assert penalised(sampling, 0.5) == sampling
    assert penalised(Sampling(4), 0.5) == Sampling(4, frequency_penalty=0.5)


@pytest.mark.parametrize(
    "wrong",
    [{"engine_args": {"no_such_argument": 1}}, {"max_model_len": 1_000_000}, {"dtype": "float7"}],
    ids=["unknown argument", "context longer than the model's", "unknown type"],
)
async def test_settings_that_vllm_refuses_are_a_config_error(model, wrong):
    with pytest.raises(ConfigError):
        await VllmEngine(GeneratorSettings(**wrong), model).start()


async def test_a_folder_without_a_model_is_a_config_error(tmp_path):
    with pytest.raises(ConfigError):
        await VllmEngine(small_engine(tmp_path), tmp_path).start()


@pytest.mark.prove("generator/")
async def test_a_deletion_without_the_connector_empties_vllms_own_cache(model, layout, preemptions, tmp_path):
    engine = VllmEngine(small_engine(tmp_path, kv_enabled=False), model)
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
        assert await cached("to compute it again") == 0
        before = preemptions()
        runs = msgspec.structs.replace(shared, query_id="runs")
        async with aclosing(engine.stream(runs, Sampling(max_tokens=40))) as stream:
            first = await anext(stream)
            assert await engine.carry_out(Orders(everything=True)) == ()
            assert text_of([first, *[step async for step in stream]]) == expected
        assert preemptions() > before
    finally:
        await engine.close()
