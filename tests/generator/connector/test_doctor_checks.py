"""The doctor's checks find a wrong engine: here the shared engine, with something done to its KV or its prompts."""

import mmap
from collections.abc import AsyncIterator, Callable
from uuid import uuid4

import msgspec
import numpy as np
import pytest
import pytest_asyncio
from doctor_cases import doctor_context
from engine_settings import small_engine
from kv_plans import DISK, GPU, HOST, segment

from examine.doctor.checks.engines import CachingEngine, PlainEngine
from examine.doctor.checks.exact_answers import ExactAnswers
from examine.doctor.checks.failing_load import FailingLoad
from examine.doctor.checks.first_tokens import FirstTokens
from examine.doctor.checks.model import real_prompts
from examine.doctor.checks.restart import Restart
from examine.doctor.context import Context, Reference
from examine.doctor.differences import Tolerances
from examine.doctor.examination import Examination
from examine.doctor.outcome import Outcome, Status
from examine.measuring.engines import Generation, generate
from generator.engines.vllm_engine import VllmEngine
from generator.prompts.layout import SegmentLayout
from generator.prompts.tokenizer import ModelTokenizer
from protocol.generation import Sampling
from protocol.kv import Orders
from protocol.plans import PrefillPlan
from protocol.prompts import Prompt

pytestmark = [pytest.mark.vllm, pytest.mark.asyncio(loop_scope="session")]

PROMPTS = 4
NOISE_BYTES = 80 << 20


class Changed:
    """The shared engine, with a function that changes its plans and one that is called after orders."""

    def __init__(
        self,
        engine: VllmEngine,
        change: Callable[[PrefillPlan], PrefillPlan] = lambda plan: plan,
        after_orders: Callable[[Orders], None] = lambda orders: None,
    ) -> None:
        self._engine = engine
        self._change = change
        self._after_orders = after_orders

    def __getattr__(self, name):
        return getattr(self._engine, name)

    async def stream(self, plan, sampling):
        async for step in self._engine.stream(self._change(plan), sampling):
            yield step

    async def carry_out(self, orders):
        lost = await self._engine.carry_out(orders)
        self._after_orders(orders)
        return lost


class NothingToDo:
    """In the place of the check that starts vLLM without the connector."""

    name = PlainEngine.name
    needs = ()

    async def run(self, context: Context) -> Outcome:
        return Outcome.passed()


class SharedSlot:
    """A slot in which the shared engine always runs. A restart only forgets what the engine itself holds."""

    def __init__(self, engine: VllmEngine | Changed, folder, forget: Orders | None = None) -> None:
        self.running = engine
        self.folder = folder
        self._forget = forget or Orders(everything=True, tiers=(GPU,))

    async def close(self) -> None:
        pass

    async def start_caching(self) -> VllmEngine | Changed:
        await self.running.carry_out(self._forget)
        return self.running


@pytest.fixture
def asynchronous() -> bool:
    """One mode is enough: the checks only ask the engine."""
    return False


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def asked(engine_of, tiny_model) -> tuple[list[Prompt], list[Generation]]:
    """Prompts of real text, with the answers that the engine computes for them."""
    engine, _ = await engine_of(False)
    tokenizer = ModelTokenizer(tiny_model)
    prompts = real_prompts(SegmentLayout(tokenizer, "Answer.", 1024), tokenizer, PROMPTS, answer_tokens=6)
    plans = [PrefillPlan(uuid4().hex, "generator", uuid4().hex, prompt) for prompt in prompts]
    return prompts, [await generate(engine, plan, Sampling(6, logprobs=True)) for plan in plans]


@pytest_asyncio.fixture(loop_scope="session")
async def examined(engine, asked, kv_folder, tmp_path) -> AsyncIterator[Context]:
    """A context in which the shared engine runs, with its own answers as the reference. Checks leave no KV behind."""
    with doctor_context(tmp_path, max_model_len=1024) as context:
        context.prompts, answers = asked
        context.reference = Reference(answers, Tolerances(1e-3, 1e-5), {"plain": [100.0], "floor": [10.0]})
        context.memory = (await engine.info()).kv
        context.step = (await engine.info()).step
        context.engine = SharedSlot(engine, kv_folder)
        yield context
    await engine.carry_out(Orders(everything=True))


def write_noise(context, kv_folder) -> None:
    """Overwrite the first pages of host memory, but not the headers in front of all pages."""
    with small_engine(kv_folder).kv.host_file.open("r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
        begin = 4096 * (1 + context.memory.host_pages)
        noise = np.random.default_rng(0).standard_normal(NOISE_BYTES // 4).astype(np.float32).tobytes()
        memory[begin : begin + NOISE_BYTES] = noise


async def test_a_right_engine_passes(examined):
    for check in (ExactAnswers(), FailingLoad(), FirstTokens(), Restart()):
        found = await check.run(examined)
        assert found.status in (Status.PASSED, Status.WARNING), found
    assert found.figure == (
        "prompts answered by the next engine: 2 from host, 2 from disk; a truncated file is computed again"
    )


async def test_pages_that_change_in_host_memory_are_found(examined, engine, kv_folder):
    def corrupt(orders: Orders) -> None:
        if any(move.target is HOST for move in orders.moves):
            write_noise(examined, kv_folder)

    examined.engine = SharedSlot(Changed(engine, after_orders=corrupt), kv_folder)
    examined.prompts = examined.prompts[:1]
    found = await ExactAnswers().run(examined)
    assert found.status is Status.FAILED
    assert found.why == "1 of 1 answers with KV from host are wrong: do not use it"


async def test_kv_of_another_prompt_is_found(examined, engine, kv_folder):
    other = segment("of another prompt", 40)

    def exchange(plan: PrefillPlan) -> PrefillPlan:
        if not any(node.kept is GPU and node.source is None for node in plan.nodes):
            return plan
        system, first, *rest = plan.prompt.segments
        ids = (other.token_ids + first.token_ids)[: len(first.token_ids)]
        wrong = Prompt((system, msgspec.structs.replace(first, token_ids=ids), *rest))
        return msgspec.structs.replace(plan, prompt=wrong)

    examined.engine = SharedSlot(Changed(engine, exchange), kv_folder)
    examined.prompts = examined.prompts[:1]
    found = await ExactAnswers().run(examined)
    assert found.status is Status.FAILED
    assert "are wrong: do not use it" in found.why


async def test_kv_that_a_tier_has_lost_is_found(examined, engine, kv_folder):
    def lose(orders: Orders) -> None:
        if any(move.target is DISK for move in orders.moves):
            for file in (kv_folder / "kv").rglob("*.safetensors"):
                file.unlink()

    examined.engine = SharedSlot(Changed(engine, after_orders=lose), kv_folder)
    examined.prompts = examined.prompts[:1]
    found = await ExactAnswers().run(examined)
    assert found.status is Status.FAILED
    assert found.why == "the KV of 1 of 1 prompts was not found in disk again"


async def test_a_wrong_answer_after_a_failed_load_is_found(examined, engine, kv_folder):
    def exchange(plan: PrefillPlan) -> PrefillPlan:
        if not any(node.source is HOST for node in plan.nodes):
            return plan
        *front, question = plan.prompt.segments
        turned = Prompt((*front, msgspec.structs.replace(question, token_ids=question.token_ids[::-1])))
        return msgspec.structs.replace(plan, prompt=turned)

    examined.engine = SharedSlot(Changed(engine, exchange), kv_folder)
    found = await FailingLoad().run(examined)
    assert (found.status, found.why) == (
        Status.FAILED,
        "an answer is wrong after a load from host failed: do not use it",
    )


async def test_a_missing_copy_that_is_not_reported_is_found(examined, engine, kv_folder):
    def without_loads(plan: PrefillPlan) -> PrefillPlan:
        return msgspec.structs.replace(plan, nodes=()) if any(node.source is HOST for node in plan.nodes) else plan

    examined.engine = SharedSlot(Changed(engine, without_loads), kv_folder)
    found = await FailingLoad().run(examined)
    assert (found.status, found.why) == (Status.FAILED, "a copy that is missing in host was not reported")


async def test_kv_that_a_restart_loses_is_found(examined, engine, kv_folder):
    examined.engine = SharedSlot(engine, kv_folder, forget=Orders(everything=True))
    found = await Restart().run(examined)
    assert (found.status, found.why) == (
        Status.FAILED,
        "the KV that an engine wrote to host is not found by the next one",
    )


async def test_kv_that_a_restart_changes_is_found(examined, engine, kv_folder):
    def corrupt(orders: Orders) -> None:
        if orders.everything:
            write_noise(examined, kv_folder)

    examined.engine = SharedSlot(Changed(engine, after_orders=corrupt), kv_folder)
    found = await Restart().run(examined)
    assert (found.status, found.why) == (
        Status.FAILED,
        "an answer with KV that an earlier engine wrote to host is wrong: do not use it",
    )


@pytest.mark.parametrize(("enabled", "status"), [(True, Status.FAILED), ("auto", Status.SKIPPED)])
async def test_what_the_connector_refuses_is_said(tiny_model, tmp_path, enabled, status):
    refused = {"max_model_len": 1024, "dtype": "float32", "engine_args": {"kv_cache_dtype": "bfloat16"}}
    with doctor_context(tmp_path, kv={"enabled": enabled}, model=str(tiny_model), **refused) as context:
        found = await Examination([NothingToDo(), CachingEngine()]).run(context, lambda *_: None)
    assert found.checks[-1].status is status
    assert found.checks[-1].why.endswith(
        "connector does not support vLLM's kv_cache_dtype=bfloat16: set kv_cache_dtype to the model's own dtype"
    )
