"""Compositions take turns, a step at a time, and each of them ends once."""

import pytest

pytest.importorskip("vllm")

from generator.connector.scheduler.compositions import Compositions
from generator.connector.step_jobs import ComposeStep, Composition
from protocol.plans import Recompute

FIRST, SECOND = (Composition((1, 2, 3), (block,), 0, (), 1, 2, Recompute("none", 0.0)) for block in (1, 2))


def test_one_is_composed_after_the_other():
    compositions = Compositions()
    compositions.add("a", FIRST)
    compositions.add("b", SECOND)
    assert compositions.next_step() == ComposeStep("a", FIRST)
    assert compositions.next_step() == ComposeStep("a")
    compositions.ended("a")
    assert compositions.next_step() == ComposeStep("b", SECOND)
    compositions.ended("b")
    assert compositions.next_step() is None


@pytest.mark.parametrize("begun", [False, True])
def test_what_is_given_up_ends_with_a_step_of_its_own(begun):
    compositions = Compositions()
    compositions.add("a", FIRST)
    if begun:
        compositions.next_step()
    compositions.drop("a")
    assert compositions.next_step() == ComposeStep("a", drop=True)
    compositions.ended("a")
    assert compositions.next_step() is None


def test_what_was_loaded_for_a_request_that_has_ended_is_given_up():
    compositions = Compositions()
    compositions.add("a", None)
    assert compositions.next_step() == ComposeStep("a", drop=True)


def test_giving_up_an_unknown_request_does_nothing():
    compositions = Compositions()
    compositions.drop("a")
    assert compositions.next_step() is None
