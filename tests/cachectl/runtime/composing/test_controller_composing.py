"""Composed plans: a document's KV serves it wherever it stands, and nothing else changes."""

import asyncio

import msgspec
import pytest
from controller_integrity import check_integrity
from controller_under_test import (
    TOKENS,
    Clock,
    ask,
    cached,
    checked_controllers,
    fill,
    kept,
    key,
    report,
    sources,
    waiting,
)

from protocol.errors import InvalidRequest
from protocol.generation import ComposingInfo, PrefillResult, StepBudget
from protocol.plans import AdmissionRequest, Donor, PlanOutcome, PrefillPlan, Recompute, Reuse
from protocol.tiers import Tier

GPU, HOST, DISK = Tier
STEP = StepBudget(100, 100)
COMPOSING = ComposingInfo(0.0, ("query",))


class Engine:
    """An executor that ends each prefill at once."""

    def __init__(self) -> None:
        self.plans: list[PrefillPlan] = []

    async def prefill(self, plan: PrefillPlan) -> PrefillResult:
        self.plans.append(plan)
        return PrefillResult(plan.prompt.token_count, 0, 1.0)

    async def carry_out(self, instance, orders):
        return ()

    @property
    def computed(self) -> list[str]:
        """The documents of each prefill."""
        return [documents(plan) for plan in self.plans]


@pytest.fixture
def engine():
    return Engine()


@pytest.fixture
def build(engine):
    with checked_controllers(
        Clock(), engine, policy="PGDSF", reuse=Reuse.COMPOSED, step=STEP, composing=COMPOSING
    ) as build:
        yield build


def ask_for(query_id: str, documents: str, reuse: Reuse | None = None, share: float | None = None) -> AdmissionRequest:
    return msgspec.structs.replace(ask(query_id, documents, system="s"), reuse=reuse, recompute_share=share)


def documents(plan: PrefillPlan) -> str:
    return "".join(segment.key for segment in plan.prompt.prefix)


def donors(plan: PrefillPlan) -> list[Donor | None]:
    return [node.donor for node in plan.nodes]


async def settled() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


@pytest.mark.parametrize(("filled", "donor"), [("b", "sb"), ("cb", "scb"), ("dcb", "sdcb")])
async def test_a_document_is_composed_out_of_its_kv_from_anywhere(build, filled, donor):
    controller = build()
    await fill(controller, "a", filled, system="s")
    plan = await controller.admit(ask_for("q", "ab"))
    assert sources(plan) == [GPU, GPU, None]
    assert donors(plan) == [None, None, Donor(key(donor), GPU, (len(donor) - 1) * TOKENS)]
    assert plan.recompute == Recompute("query", 0.2)
    await controller.complete(report("q"))


async def test_the_fastest_copy_donates_and_among_these_one_that_stood_behind_another_document(build):
    controller = build(gpu=5 * TOKENS, host=20 * TOKENS)
    for documents in ("b", "cb", "a"):
        await controller.admit(ask_for("fill", documents, Reuse.EXACT))
        await controller.complete(report("fill"))
    plan = await controller.admit(ask_for("q", "ab"))
    assert donors(plan)[2] == Donor(key("scb"), GPU, 2 * TOKENS)
    await controller.complete(report("q"))
    await fill(controller, "wxyz", "b", "a", system="s")
    plan = await controller.admit(ask_for("r", "ab"))
    assert donors(plan)[2] == Donor(key("sb"), GPU, TOKENS)
    await controller.complete(report("r"))


async def test_kv_behind_another_system_prompt_is_no_donor(build):
    controller = build()
    await fill(controller, "a", system="s")
    await fill(controller, "b", system="t")
    plan = await controller.admit(ask_for("q", "ab"))
    assert donors(plan) == [None] * 3
    await controller.complete(report("q"))


async def test_a_composed_plan_keeps_nothing_and_evicts_no_donor(build):
    controller = build(gpu=3 * TOKENS)
    await fill(controller, "a", "b", system="s")
    plan = await controller.admit(ask_for("q", "ab"))
    assert [node.kept for node in plan.nodes] == [GPU, GPU, None]
    await controller.complete(report("q"))
    for document in "ab":
        assert await cached(controller, document, system="s") == [GPU, GPU]


async def test_an_exact_prefix_comes_first(build):
    controller = build()
    await fill(controller, "ab", "b", "c", system="s")
    plan = await controller.admit(ask_for("q", "abc"))
    assert sources(plan) == [GPU, GPU, GPU, None]
    assert donors(plan)[3] == Donor(key("sc"), GPU, TOKENS)
    await controller.complete(report("q"))


@pytest.mark.parametrize(
    ("reuse", "share", "expected"),
    [
        (None, None, Recompute("query", 0.2)),
        (Reuse.COMPOSED, 0.5, Recompute("query", 0.5)),
        (Reuse.EXACT, 0.5, None),
        # No gate has passed.
        (Reuse.AUTO, None, None),
    ],
)
async def test_a_request_may_ask_for_its_kind_of_reuse(build, reuse, share, expected):
    controller = build()
    await fill(controller, "a", "b", system="s")
    plan = await controller.admit(ask_for("q", "ab", reuse, share))
    assert plan.recompute == expected
    await controller.complete(report("q"))


@pytest.mark.parametrize("share", [-0.1, 1.1])
async def test_a_share_out_of_bounds_is_refused(build, share):
    with pytest.raises(InvalidRequest, match="between 0 and 1"):
        await build().admit(ask_for("q", "ab", share=share))


@pytest.mark.parametrize(
    "changes",
    [
        {"composing": None},
        {"reuse": Reuse.EXACT},
        {"composing": ComposingInfo(2.0, ("query",))},
        pytest.param({"recompute_method": "cacheclip"}, id="a selector that needs a model that is missing"),
    ],
)
async def test_nothing_is_composed_where_that_is_impossible_unwanted_or_slow(build, changes):
    controller = build(**changes)
    await fill(controller, "a", "b", system="s")
    plan = await controller.admit(ask_for("q", "ab"))
    assert plan.recompute is None
    assert donors(plan) == [None, None, None]
    await controller.complete(report("q"))


async def test_a_prompt_may_have_a_document_twice(build):
    controller = build()
    await fill(controller, "a", "b", system="s")
    plan = await controller.admit(ask_for("q", "abb"))
    assert donors(plan)[2:] == [Donor(key("sb"), GPU, TOKENS)] * 2
    await controller.complete(report("q", PlanOutcome.FAILED, computed=0))


async def test_a_donor_stays_while_a_plan_uses_it_although_its_document_is_deleted(build):
    controller = build()
    await fill(controller, "a", "b", system="s")
    await controller.admit(ask_for("q", "ab"))
    assert await controller.clear() == 3
    check_integrity(controller)
    await controller.complete(report("q"))


async def test_what_has_no_donor_is_prefilled_first_so_that_it_is_kept_and_donates(build):
    controller = build()
    await fill(controller, "ab", "b", "c", system="s")
    plan = await controller.admit(ask_for("q", "acde"))
    assert documents(plan.first) == "sade"
    assert (sources(plan.first), kept(plan.first)) == ([GPU, GPU, None, None], [GPU] * 4)
    assert (sources(plan), kept(plan)) == ([GPU, GPU, None, None, None], [GPU, GPU, None, None, None])
    assert donors(plan)[2:] == [
        Donor(key("sc"), GPU, TOKENS),
        Donor(key("sad"), GPU, 2 * TOKENS),
        Donor(key("sade"), GPU, 3 * TOKENS),
    ]
    await controller.complete(report("q"))
    assert await cached(controller, "ade", system="s") == [GPU] * 4


async def test_what_stands_in_front_of_all_that_is_donated_stays_exact(build):
    controller = build()
    await fill(controller, "b", system="s")
    plan = await controller.admit(ask_for("q", "acb"))
    assert documents(plan.first) == "sac"
    assert sources(plan) == [GPU, GPU, GPU, None]
    assert donors(plan) == [None, None, None, Donor(key("sb"), GPU, TOKENS)]
    await controller.complete(report("q"))
    assert await cached(controller, "ac", system="s") == [GPU] * 3


async def test_what_cannot_be_kept_is_computed_among_what_is_composed(build):
    controller = build(gpu=3 * TOKENS)
    await fill(controller, "a", "b", system="s")
    plan = await controller.admit(ask_for("q", "abc"))
    assert plan.first is None
    assert sources(plan) == [GPU, GPU, None, None]
    assert [donor is not None for donor in donors(plan)] == [False, False, True, False]
    await controller.complete(report("q"))
    assert await cached(controller, "ab", system="s") == [GPU, GPU, None]


async def test_what_is_loaded_for_both_prefills_is_loaded_once(build):
    controller = build(gpu=4 * TOKENS, host=8 * TOKENS)
    await fill(controller, "a", "bcd", system="s")
    plan = await controller.admit(ask_for("q", "abx", reuse=Reuse.COMPOSED))
    assert documents(plan.first) == "sax"
    assert sources(plan.first) == [GPU, HOST, None]
    assert sources(plan)[:2] == [GPU, GPU]
    assert (plan.first.moves != (), plan.moves) == (True, ())
    await controller.complete(report("q"))


async def test_a_failed_plan_keeps_nothing_of_the_prefill_in_front_of_it(build):
    controller = build()
    await fill(controller, "a", "b", system="s")
    plan = await controller.admit(ask_for("q", "abc"))
    assert documents(plan.first) == "sac"
    await controller.complete(report("q", PlanOutcome.FAILED, computed=0))
    assert await cached(controller, "ac", system="s") == [GPU, GPU, None]


@pytest.mark.parametrize(
    ("filled", "asked", "computed"),
    [
        # Of a prompt that is composed, what has no donor.
        (["a", "b"], "abc", ["sac"]),
        (["a", "b"], "cabd", ["scd"]),
        # Of one that is computed, everything.
        (["a"], "abc", ["sabc"]),
        (["ab"], "ab", []),
        # What is donated is not computed, and what is loaded is there.
        (["a", "b"], "ab", []),
    ],
)
async def test_a_queued_prompt_has_computed_ahead_what_is_not_donated(build, engine, filled, asked, computed):
    controller = build(max_running=1, prepare_after_s=0.0)
    await fill(controller, *filled, system="s")
    await controller.admit(ask_for("runs", "x", Reuse.EXACT))
    await controller.prefilled("runs")
    task = await waiting(controller, ask_for("q", asked))
    await settled()
    assert engine.computed == computed
    await controller.complete(report("runs"))
    plan = await task
    assert all(node.source or node.donor for node in plan.nodes)
    await controller.complete(report("q"))
    await settled()
    assert engine.computed == computed
