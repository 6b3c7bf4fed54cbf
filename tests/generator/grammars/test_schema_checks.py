"""Schemas of any caller are tried in a process of their own, whose end is that schema's refusal alone."""

import asyncio
import json
import os
import signal
import time
from contextlib import suppress

import psutil
import pytest
import pytest_asyncio
from hypothesis import HealthCheck, Phase, given, settings
from msgspec.structs import replace
from nasty_schemas import COSTLY, DEEP, LARGE, ORDINARY, nasty_schemas

from generator.grammars.schema_checks import CompileBudgets, SchemaChecks
from protocol.errors import InvalidRequest, Overloaded, RateLimited, Unavailable

STACK = 4 << 20
KNOWN = 256 << 20
SLOW = COSTLY["a long string"]

pytestmark = pytest.mark.asyncio(loop_scope="module")


def made(vocabulary, cpu_s=1) -> SchemaChecks:
    return SchemaChecks(lambda: vocabulary, cpu_s, STACK, KNOWN)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def checks(vocabulary):
    checks = made(vocabulary)
    checks.start()
    await checks.require(ORDINARY, "nobody")
    yield checks
    checks.close()


def other_schema(number: int) -> str:
    return json.dumps({"const": f"number {number}"})


def slow_schema(number: int) -> str:
    return json.dumps({**SLOW, "maxLength": SLOW["maxLength"] + number})


async def refusal(checks: SchemaChecks, schema: dict, caller: str) -> str:
    with pytest.raises(InvalidRequest) as caught:
        await checks.require(json.dumps(schema), caller)
    assert caught.value.param == "json_schema"
    return caught.value.message


@pytest.mark.parametrize(("name", "schema"), DEEP.items(), ids=DEEP)
async def test_a_schema_that_overflows_the_stack_is_refused(checks, name, schema):
    assert "nests too deeply" in await refusal(checks, schema, name)


@pytest.mark.parametrize(("name", "schema"), COSTLY.items(), ids=COSTLY)
async def test_a_schema_that_costs_too_much_is_refused(checks, name, schema):
    message = await refusal(checks, schema, name)
    # Beside other tests on few cores, ten seconds may pass before one of processor time has.
    assert "takes more than" in message


async def test_a_schema_whose_answers_are_slow_is_refused(checks, monkeypatch):
    monkeypatch.setattr(checks, "_limits", replace(checks._limits, mask_s=1e-9))
    assert "a token takes more than" in await refusal(checks, json.loads(other_schema(7)), "one")


async def test_a_schema_that_takes_too_much_memory_is_refused(checks, monkeypatch):
    monkeypatch.setattr(checks, "_limits", replace(checks._limits, cpu_s=10, memory_bytes=4 << 20))
    assert "4 MiB of memory" in await refusal(checks, LARGE, "large")


async def test_a_schema_that_takes_too_long_is_refused(checks, monkeypatch):
    monkeypatch.setattr(checks, "_limits", replace(checks._limits, wall_s=1, cpu_s=60))
    assert "takes more than 1 s." in await refusal(checks, json.loads(slow_schema(60)), "long")


@pytest.mark.parametrize(
    "schema", ["", "[", "[" * 100_000, "5", '{"type": "nonsense"}', '{"$ref": "#/nowhere"}', "\ud800"]
)
async def test_what_is_no_schema_is_refused(checks, schema):
    with pytest.raises(InvalidRequest):
        await checks.require(schema, "no schema")


async def test_an_ordinary_schema_is_answered_after_all_of_them_by_the_same_process(checks):
    process = checks._worker.pid
    await refusal(checks, {**DEEP["nested groups"], "title": "new"}, "deep")
    began = time.perf_counter()
    await checks.require(other_schema(1), "one")
    assert time.perf_counter() - began < 2
    assert checks._worker.pid == process


async def test_requests_with_the_same_schema_share_one_trial(checks):
    await asyncio.gather(*(checks.require(other_schema(2), "crowd") for _ in range(50)))


async def test_one_caller_has_a_few_new_schemas_in_the_queue(checks):
    def asked():
        return [checks.require(other_schema(number), "many") for number in range(100, 112)]

    outcomes = await asyncio.gather(*asked(), return_exceptions=True)
    refused = [outcome for outcome in outcomes if outcome is not None]
    assert len(refused) == 8
    assert all(isinstance(outcome, RateLimited) and outcome.retry_after_s for outcome in refused)
    await checks.require(other_schema(111), "many")


async def test_all_callers_together_have_a_bounded_queue(checks):
    async def asked(number: int) -> None:
        await checks.require(other_schema(number), f"caller {number}")

    outcomes = await asyncio.gather(*(asked(number) for number in range(200, 240)), return_exceptions=True)
    assert sum(isinstance(outcome, Overloaded) for outcome in outcomes) == 8
    assert sum(outcome is None for outcome in outcomes) == 32


async def test_a_caller_whose_schemas_cost_too_much_waits_and_others_do_not(checks, monkeypatch):
    monkeypatch.setattr(checks, "_budgets", CompileBudgets(0.5, time.monotonic))
    await refusal(checks, json.loads(slow_schema(1)), "spender")
    with pytest.raises(RateLimited) as caught:
        await checks.require(other_schema(3), "spender")
    assert 30 < caught.value.retry_after_s < 120
    await checks.require(ORDINARY, "spender")
    await checks.require(other_schema(3), "other")


async def test_a_schema_that_nobody_waits_for_any_more_is_not_tried(checks):
    running = asyncio.create_task(refusal(checks, json.loads(slow_schema(50)), "first"))
    await asyncio.sleep(0)
    left = asyncio.create_task(checks.require(other_schema(4), "leaver"))
    await asyncio.sleep(0.05)
    left.cancel()
    with pytest.raises(asyncio.CancelledError):
        await left
    assert len(checks._trials) == 1
    await running
    await checks.require(other_schema(4), "leaver")


async def test_another_request_with_the_same_schema_still_gets_its_verdict(checks):
    running = asyncio.create_task(refusal(checks, json.loads(slow_schema(51)), "first"))
    await asyncio.sleep(0)
    left, stays = (asyncio.create_task(checks.require(other_schema(5), "both")) for _ in range(2))
    await asyncio.sleep(0.05)
    left.cancel()
    await stays
    await running


async def test_what_a_caller_left_running_is_charged(checks):
    schema = slow_schema(52)
    asked = asyncio.create_task(checks.require(schema, "runaway"))
    while not children_of(checks):
        await asyncio.sleep(0.01)
    asked.cancel()
    while checks._trials:
        await asyncio.sleep(0.01)
    assert checks._budgets._now_spent("runaway") > 0
    assert "takes more than" in await refusal(checks, json.loads(schema), "runaway")


async def test_a_process_that_was_killed_is_replaced(checks):
    killed = checks._worker.pid
    os.kill(killed, signal.SIGKILL)
    await checks.require(other_schema(6), "one")
    assert checks._worker.pid != killed


async def test_closing_answers_those_that_wait_and_verdicts_are_remembered_without_the_process(vocabulary):
    checks = made(vocabulary)
    await checks.require(ORDINARY, "one")
    message = await refusal(checks, DEEP["nested groups"], "one")
    asked = [asyncio.create_task(checks.require(slow_schema(number), "one")) for number in range(3)]
    while not children_of(checks):
        await asyncio.sleep(0.01)
    checks.close()
    outcomes = await asyncio.gather(*asked, return_exceptions=True)
    assert all(isinstance(outcome, Unavailable) for outcome in outcomes)
    checks.close()
    await checks.require(ORDINARY, "another")
    assert await refusal(checks, DEEP["nested groups"], "another") == message
    with pytest.raises(Unavailable):
        await checks.require(other_schema(1), "one")


async def test_the_process_knows_no_secret(checks):
    assert list(psutil.Process(checks._worker.pid).environ()) == ["PYTHONPATH"]


async def test_any_schema_gets_a_verdict(checks):
    process = checks._worker.pid
    loop = asyncio.get_running_loop()

    @settings(
        max_examples=12,
        deadline=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(schema=nasty_schemas)
    def verdict(schema: str) -> None:
        # A caller of its own for each, so that no budget ends the search.
        asking = asyncio.run_coroutine_threadsafe(checks.require(schema, schema), loop)
        with suppress(InvalidRequest):
            asking.result(timeout=60)

    await asyncio.to_thread(verdict)
    assert checks._worker.pid == process


def children_of(checks: SchemaChecks) -> list[int]:
    return [child.pid for child in psutil.Process(checks._worker.pid).children()]
