"""Which KV a query may use, and how its reply says which it has used."""

import pytest
from gateway_fakes import MODEL, Stack
from gateway_requests import bearer, by_label

from gateway.settings import ApiKey
from gateway.wire.reuse import facts_attention, facts_fallback
from protocol.dependency import Branch, DependencyTrees
from protocol.generation import PrefillResult
from protocol.plans import Fallback, PrefillPlan, Recompute, Reuse
from protocol.prompts import Prompt
from protocol.tiers import Tier

ASKED = {"query": "What is the capital?", "top_k": 3}
CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "What is the capital?"}]}


def composed(stack: Stack) -> None:
    """Of a prompt of 15 tokens, 2 are cached, and 6 have KV from elsewhere, of which 1 is computed again."""
    stack.controller.recompute = Recompute("query", 0.2)
    stack.generator.cached = 2
    stack.generator.loaded = {Tier.GPU: 2}
    stack.generator.composed, stack.generator.recomputed = 5, 1


@pytest.mark.parametrize("reuse", list(Reuse))
@pytest.mark.parametrize(("path", "body"), [("/query", ASKED), ("/v1/chat/completions", CHAT)], ids=["query", "chat"])
async def test_a_request_chooses_its_reuse_and_share(served, path, body, reuse):
    answer = await served.client.post(path, json=body | {"reuse": reuse.value, "recompute_share": 0.3})
    assert answer.status_code == 200
    (admitted,) = served.stack.controller.admitted
    assert (admitted.reuse, admitted.recompute_share) == (reuse, 0.3)


async def test_by_default_the_key_and_then_the_controller_choose(in_process):
    keys = (ApiKey(secret="sk-own", tenant="acme", reuse="auto"), ApiKey(secret="sk-plain", tenant="acme"))
    async with in_process(api_keys=keys) as served:
        for key, body in (("sk-own", {}), ("sk-own", {"reuse": "exact"}), ("sk-plain", {})):
            await served.client.post("/query", json=ASKED | body, headers=bearer(key))
        assert [request.reuse for request in served.stack.controller.admitted] == [Reuse.AUTO, Reuse.EXACT, None]


@pytest.mark.parametrize(("field", "value"), [("reuse", "always"), ("recompute_share", 1.5), ("recompute_share", -1)])
async def test_what_is_out_of_bounds_is_refused(served, field, value):
    answer = await served.client.post("/query", json=ASKED | {field: value})
    assert answer.status_code == 422
    assert answer.json()["error"]["param"] == field
    assert served.stack.controller.admitted == []


async def test_replies_events_and_metrics_tell_the_tokens_apart(in_process, stack: Stack):
    composed(stack)
    async with in_process(shadow_share=0.0) as served:
        await tell_the_tokens_apart(served)


async def tell_the_tokens_apart(served):
    reply = (await served.client.post("/query", json=ASKED | {"include": ["timeline"]})).json()
    assert (reply["reuse"], reply["fallback"]) == ("composed", None)
    assert reply["usage"]["prompt_tokens_details"] == {
        "cached_tokens": 2,
        "composed_tokens": 5,
        "recomputed_tokens": 1,
    }
    (prefill,) = [entry for entry in reply["timeline"] if entry["name"] == "prefill"]
    assert prefill["detail"] == "2 of 15 tokens cached, 5 composed, 1 computed again"
    stream = await served.client.post("/query", json=ASKED | {"stream": True})
    (resolved,) = [block for block in stream.text.split("\n\n") if block.startswith("event: cache.resolved")]
    assert '"composed_tokens":5,"recomputed_tokens":1,"reuse":"composed","fallback":null' in resolved
    tokens = await by_label(served, "ragtree_cache_tokens_total")
    assert tokens == {"gpu": 4, "composed": 10, "recomputed": 2, "computed": 14}
    (report, _) = served.stack.controller.reports
    assert (report.cached_tokens, report.composed_tokens, report.computed_tokens) == (2, 5, 8)


@pytest.mark.parametrize(("cached", "reuse"), [(8, "exact"), (0, "none")])
async def test_a_reply_without_composing_says_so(served, cached, reuse):
    served.stack.generator.cached = cached
    reply = (await served.client.post("/query", json=ASKED)).json()
    assert (reply["reuse"], reply["fallback"]) == (reuse, None)


@pytest.mark.parametrize("fallback", [Fallback.GATE, Fallback.NO_DONOR])
async def test_a_reply_says_why_nothing_was_composed(served, fallback):
    served.stack.controller.fallback = fallback
    reply = (await served.client.post("/query", json=ASKED | {"reuse": "auto"})).json()
    assert (reply["reuse"], reply["fallback"]) == ("exact", fallback.value)
    assert (await by_label(served, "ragtree_reuse_fallbacks_total"))[fallback.value] == 1


async def test_a_plan_that_composes_and_a_prefill_that_does_not_is_a_failure(served):
    served.stack.controller.recompute = Recompute("query", 0.2)
    reply = (await served.client.post("/query", json=ASKED)).json()
    assert reply["fallback"] == "failed"


async def test_a_prompt_that_deviates_too_much_is_told_from_a_failure(served):
    served.stack.controller.recompute = Recompute("query", 0.2, 0.3)
    served.stack.generator.deviation = 0.4
    reply = (await served.client.post("/query", json=ASKED)).json()
    assert reply["fallback"] == "deviation"


TREES = DependencyTrees(1, 1, (Branch(1, -1),))


def plan(paths: tuple[int, ...] = (0,), trees: DependencyTrees | None = None, why: Fallback | None = None):
    return PrefillPlan("query", "engine", "tenant", Prompt((), paths=paths), trees=trees, tree_fallback=why)


@pytest.mark.parametrize(
    ("planned", "in_trees", "attention", "fallback"),
    [
        (plan(()), False, None, None),
        (plan(), False, "self", None),
        (plan(why=Fallback.GATE), False, "self", Fallback.GATE),
        (plan(trees=TREES), True, "dependency", None),
        (plan(trees=TREES), False, "self", Fallback.FAILED),
    ],
)
def test_a_prefill_says_how_it_attended_to_facts(planned, in_trees, attention, fallback):
    prefill = PrefillResult(10, 0, 1.0, in_trees=in_trees)
    assert facts_attention(planned, prefill) == attention
    assert facts_fallback(planned, prefill) == fallback
