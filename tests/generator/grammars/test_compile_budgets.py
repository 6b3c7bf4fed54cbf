"""What callers' schemas may cost, and which verdicts are remembered, without any process."""

import pytest

from generator.grammars.messages import Verdict
from generator.grammars.schema_checks import CompileBudgets, KnownVerdicts
from protocol.errors import RateLimited


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_spent_budget_comes_back_within_a_minute():
    clock = Clock()
    budgets = CompileBudgets(10, clock)
    budgets.require("one")
    budgets.spend("one", 12)
    with pytest.raises(RateLimited) as caught:
        budgets.require("one")
    budgets.require("other")
    assert 12 <= caught.value.retry_after_s <= 13
    clock.now += caught.value.retry_after_s
    budgets.require("one")


def test_callers_with_nothing_spent_are_forgotten():
    clock = Clock()
    budgets = CompileBudgets(10, clock)
    for caller in range(100):
        budgets.spend(str(caller), 1)
        clock.now += 6
    assert len(budgets._spent) < 3


def test_the_least_recently_used_verdicts_are_forgotten_by_the_size_of_their_grammars():
    known = KnownVerdicts(3 << 20)
    for name in (b"a", b"b", b"c"):
        known.add(name, Verdict(compiled_bytes=1 << 20))
        known.find(b"a")
    assert [known.find(name) is not None for name in (b"a", b"b", b"c")] == [True, False, True]
    known.add(b"large", Verdict(compiled_bytes=5 << 20))
    assert known.find(b"large") is None
    known.add(b"refused", Verdict("no"))
    assert known.find(b"refused") == Verdict("no")
