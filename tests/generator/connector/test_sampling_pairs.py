"""All accepted values of sampling parameters in pairs, against prompts of one step and several and every cache state.

Each request is answered, also again if it has a seed, and the engine goes on.
"""

import msgspec
import pytest
from all_pairs import all_pairs
from composed_prompts import ComposedPrompts
from kv_plans import GPU, HOST, kv_path, put, segment

from examine.measuring.engines import generate
from examine.measuring.kv_paths import KvPath
from generator.engines.vllm_engine import VllmEngine
from protocol.generation import RepetitionDetection, Sampling
from protocol.plans import PrefillPlan

pytestmark = [pytest.mark.vllm, pytest.mark.asyncio(loop_scope="session")]

SCHEMA = (
    '{"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"], "additionalProperties": false}'
)
OPTIONS = {
    "prompt": ["one step", "several steps", "in the GPU", "in host memory", "composed"],
    "max_tokens": [1, 5, 40],
    "temperature": [0.0, 1e-10, 0.7, 2.0],
    "top_p": [1.0, 0.5, 1e-300],
    "top_k": [0, 1, 50, 1_000_000],
    "min_p": [0.0, 0.1, 1.0],
    "frequency_penalty": [None, -2.0, 2.0],
    "presence_penalty": [0.0, -2.0, 2.0],
    "repetition_penalty": [1.0, 5e-324, 10.0],
    "repetition_detection": [None, RepetitionDetection(), RepetitionDetection(1, 1, 2)],
    "logit_bias": [{}, {5: -100.0}, {5: 100.0, 0: 100.0}],
    "seed": [None, 0, -1, 2**53 - 1, -(2**53) + 1],
    "stop": [(), ("e",), tuple(str(number) * 5000 for number in range(16))],
    "json_schema": [None, '{"type":"object"}', SCHEMA],
    "logprobs": [False, True],
    "alternatives": [0, 20],
    "ignore_eos": [False, True],
}
ROWS = all_pairs(OPTIONS)


async def plan_of(engine: VllmEngine, prompt: str, path: KvPath) -> PrefillPlan:
    """A plan for a prompt of so many steps, or with its KV in such a place."""
    match prompt:
        case "one step":
            return kv_path((segment("short", 40),)).plan("why?", None, None)
        case "several steps":
            return kv_path(path.segments).plan("why?", None, None)
        case "composed":
            prompts = ComposedPrompts(path.namespace, GPU)
            await prompts.put(engine)
            return prompts.plan("why?", 0.3)
    tier = HOST if prompt == "in host memory" else GPU
    await put(engine, path, tier)
    return path.plan("why?", tier, tier)


@pytest.mark.parametrize("number", range(len(ROWS)))
async def test_a_request_is_answered_and_the_engine_goes_on(engine, path, number):
    row = dict(ROWS[number])
    prompt = row.pop("prompt")
    sampling = Sampling(**row)
    await engine.check(sampling, "caller")
    plan = await plan_of(engine, prompt, path)
    answer = await generate(engine, plan, sampling)
    assert answer.finish_reason in ("stop", "length")
    assert 1 <= answer.tokens <= sampling.max_tokens
    if sampling.seed is not None and plan.recompute is None:
        again = await generate(engine, msgspec.structs.replace(plan, query_id="again"), sampling)
        assert again.text == answer.text
    await engine.ready()
