"""How checks are run, with checks that are fakes."""

import asyncio
import json

import msgspec
import pytest
from doctor_cases import doctor_context

from examine.doctor.examination import Examination
from examine.doctor.outcome import Outcome, Status
from protocol.errors import ConfigError


class FakeCheck:
    """Ends as told, and counts its runs."""

    def __init__(self, name: str, ends: Outcome | Exception, *needs: str) -> None:
        self.name = name
        self.needs = needs
        self._ends = ends
        self.runs = 0

    async def run(self, context):
        self.runs += 1
        if isinstance(self._ends, Exception):
            raise self._ends
        return self._ends


class HangingFakeCheck(FakeCheck):
    async def run(self, context):
        await asyncio.Event().wait()


@pytest.fixture
def context(tmp_path):
    with doctor_context(tmp_path) as made:
        yield made


async def examine(context, *checks, longest_s: float = 60):
    return await Examination(checks, longest_s).run(context, lambda *_: None)


async def test_all_is_well_if_no_check_fails(context):
    checks = [
        FakeCheck("one", Outcome.passed("5")),
        FakeCheck("two", Outcome.warning("try harder", "3")),
        FakeCheck("three", Outcome.skipped("there is none")),
    ]
    found = await examine(context, *checks)
    assert found.passed
    assert found.failures == []
    assert json.loads(msgspec.json.encode(found)) == {
        "passed": True,
        "checks": [
            {"name": "one", "status": "passed", "figure": "5", "why": ""},
            {"name": "two", "status": "warning", "figure": "3", "why": "try harder"},
            {"name": "three", "status": "skipped", "figure": "", "why": "there is none"},
        ],
    }


@pytest.mark.parametrize(
    ("ends", "why"),
    [
        (Outcome.failed("it is broken"), "it is broken"),
        (ConfigError("vLLM refuses\n  the option"), "vLLM refuses the option"),
        (ZeroDivisionError("division by zero"), "ZeroDivisionError: division by zero"),
    ],
    ids=["outcome", "own error", "defect"],
)
async def test_a_check_that_fails_does_not_stop_those_that_do_not_need_it(context, ends, why):
    independent, dependent = FakeCheck("independent", Outcome.passed()), FakeCheck("dependent", Outcome.passed(), "bad")
    further = FakeCheck("further", Outcome.passed(), "dependent")
    found = await examine(context, FakeCheck("bad", ends), independent, dependent, further)
    assert not found.passed
    assert [(check.name, check.why) for check in found.failures] == [("bad", why)]
    assert [check.status for check in found.checks] == [Status.FAILED, Status.PASSED, Status.SKIPPED, Status.SKIPPED]
    assert found.checks[2].why == "it needs the check 'bad'"
    assert (independent.runs, dependent.runs, further.runs) == (1, 0, 0)


async def test_a_check_may_need_one_that_warns(context):
    needing = FakeCheck("needing", Outcome.passed(), "warns")
    assert (await examine(context, FakeCheck("warns", Outcome.warning("careful")), needing)).passed
    assert needing.runs == 1


async def test_a_check_that_hangs_fails(context):
    found = await examine(context, HangingFakeCheck("hangs", Outcome.passed()), longest_s=0.01)
    assert [(check.name, check.why) for check in found.failures] == [("hangs", "it did not end within 0.01 s")]


async def test_a_very_long_reason_is_cut():
    assert len(Outcome.failed("word " * 1000).why) < 500
