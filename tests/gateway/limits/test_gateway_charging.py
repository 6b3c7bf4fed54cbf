"""When the tokens of a query are charged, and to how much they add up."""

import asyncio
import contextlib

import pytest
from gateway_fakes import ANSWER, eventually, whenever_possible

from gateway.limits.tokens import TokenMeter
from protocol.errors import EngineDied

CHAT = {"model": "fake-model", "messages": [{"role": "user", "content": "x"}], "temperature": 1}
LIMIT = 100_000


def charged(served) -> int:
    """Tokens in the only window."""
    return sum(served.app.state.gateway.stores.windows._storage.storage.values())


async def at_rest(served) -> None:
    await eventually(lambda: not served.running and not len(served.app.state.gateway.quotas._tasks))


async def prompt_tokens(served, path: str = "/query", body: dict[str, object] | None = None) -> int:
    """The prompt's tokens of a query that is answered. What it used is charged."""
    answer = await served.client.post(path, json=body or {"query": "x"})
    assert answer.status_code == 200, answer.text
    await at_rest(served)
    return answer.json()["usage"]["prompt_tokens"]


async def leave_in(served, phase: str, path: str = "/query", body: dict[str, object] | None = None) -> None:
    """Send a query whose client leaves once the query is in a phase."""
    served.stack.phases.held.add(phase)
    asking = asyncio.create_task(served.client.post(path, json=body or {"query": "x"}))
    await eventually(lambda: served.stack.phases.waiting[phase] > 0)
    asking.cancel()
    await asyncio.wait({asking})
    await at_rest(served)
    served.stack.phases.held.clear()


@pytest.mark.parametrize("stream", [False, True])
async def test_clients_that_leave_before_their_first_token_pay_until_they_are_refused(over_http, stream: bool):
    async with over_http(limits={"tokens_per_minute": LIMIT}) as free:
        prompt = await prompt_tokens(free)
    limit = 20 * prompt
    async with over_http(limits={"tokens_per_minute": limit}) as live:
        for left in range(20):
            await leave_in(live, "prefill", body={"query": "x", "stream": stream})
            assert charged(live) == (left + 1) * prompt
        refused = await live.client.post("/query", json={"query": "x"})
        assert refused.status_code == 429
        assert refused.headers["x-ratelimit-remaining-tokens"] == "0"


@pytest.mark.parametrize("phase", ["search", "queue"])
async def test_a_query_that_the_engine_never_began_costs_no_tokens(over_http, phase: str):
    async with over_http(limits={"tokens_per_minute": LIMIT}) as live:
        await leave_in(live, phase)
        assert charged(live) == 0
        assert (await live.client.post("/query", json={"query": "x"})).headers["x-ratelimit-remaining-tokens"] == str(
            LIMIT
        )


async def test_an_answered_query_is_charged_its_usage_whatever_was_guessed(in_process):
    async with in_process(limits={"tokens_per_minute": LIMIT}) as served:
        served.stack.controller.decide = whenever_possible
        prompt = await prompt_tokens(served)
        assert charged(served) == prompt + len(ANSWER)


async def test_a_query_that_is_tried_again_pays_for_one_prompt(in_process):
    async with in_process(limits={"tokens_per_minute": LIMIT}) as served:
        prompt = await prompt_tokens(served)
        before = charged(served)
        served.stack.phases.failing = {"prefill": EngineDied("gone")}
        assert (await served.client.post("/query", json={"query": "x"})).status_code == 500
        await at_rest(served)
        assert served.stack.generator.calls["opened"] == 3, "one answer, one failure, one retry"
        assert charged(served) == before + prompt


async def test_choices_that_are_left_pay_for_what_each_of_them_has_used(over_http):
    async with over_http(limits={"tokens_per_minute": LIMIT}) as live:
        prompt = await prompt_tokens(live, "/v1/chat/completions", CHAT)
        answered = charged(live)
        live.stack.phases.held.add("decode")
        asking = asyncio.create_task(live.client.post("/v1/chat/completions", json=CHAT | {"n": 3}))
        await eventually(lambda: live.stack.phases.waiting["decode"] == 3)
        asking.cancel()
        await asyncio.wait({asking})
        await at_rest(live)
        assert charged(live) == answered + prompt + 3, "a token of each"


async def test_a_rewriting_is_charged_even_if_its_client_leaves_in_it(over_http):
    messages = [
        {"role": "user", "content": "who?"},
        {"role": "assistant", "content": "she"},
        {"role": "user", "content": "why?"},
    ]
    body = CHAT | {"messages": messages, "follow_ups": "rewritten"}
    async with over_http(limits={"tokens_per_minute": LIMIT}, rewrite_timeout_s=60) as live:
        await leave_in(live, "prefill", "/v1/chat/completions", body)
        assert live.stack.retriever.requests == [], "it left in the rewriting"
        assert charged(live) > 0


async def test_work_before_a_run_is_charged_with_it(in_process):
    async with in_process(limits={"tokens_per_minute": LIMIT}) as served:
        quotas = served.app.state.gateway.quotas
        caller = served.app.state.gateway.keyring.caller({})
        async with quotas.query(caller, {}) as ticket:
            ticket.used(40)
            ticket.used(2)
        await at_rest(served)
        assert charged(served) == 42
        assert quotas._reservations.of(caller.owner) == 0


async def test_charges_take_up_what_was_reserved_for_the_query(in_process):
    async with in_process(limits={"tokens_per_minute": LIMIT}) as served:
        prompt = await prompt_tokens(served)
        spent, expected = charged(served), prompt + len(ANSWER)
        served.stack.phases.held.add("prefill")
        asking = asyncio.create_task(served.client.post("/query", json={"query": "x"}))
        await eventually(lambda: served.stack.phases.waiting["prefill"] > 0 and charged(served) == spent + prompt)
        embedded = await served.client.post("/v1/embeddings", json={"model": "fake-embedder", "input": "x"})
        assert int(embedded.headers["x-ratelimit-remaining-tokens"]) == LIMIT - spent - expected
        asking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asking


def test_the_longest_prompt_of_all_attempts_is_charged_once():
    parts: list[int] = []
    meter = TokenMeter(parts.append, prompt_paid=False)
    for prompt in (100, 80, 120, 120):
        meter.began(prompt)
    meter.generated(3)
    meter.ended()
    meter.ended()
    assert parts == [100, 20, 3]
