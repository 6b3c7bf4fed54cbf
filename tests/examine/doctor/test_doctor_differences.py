"""Which differences of answers are the engine's own rounding."""

from math import log

import pytest
from doctor_cases import answer

from examine.doctor.differences import Tolerances, differ

SAID = answer((1, -0.5), (2, -0.25), (3, -0.125))


def test_equal_answers_do_not_differ():
    assert not differ(SAID, SAID, 0.0)


@pytest.mark.parametrize(
    "other",
    [
        answer((1, -0.5), (2, -0.3), (3, -0.125)),
        answer((1, -0.5), (7, -0.25), (3, -0.125)),
        answer((1, -0.5), (2, -0.25)),
        answer(),
    ],
    ids=["logprob", "a token that was nearly certain", "shorter", "empty"],
)
def test_wrong_answers_differ(other):
    assert differ(SAID, other, 0.01)
    assert differ(other, SAID, 0.01)


def test_a_near_tie_may_turn_and_ends_the_comparison():
    tied = log(0.45)
    one, other = answer((1, tied), (2, -0.1), (3, -0.1)), answer((9, tied - 0.005), (5, -3.0), (5, -3.0))
    assert not differ(one, other, 0.01)
    assert differ(one, other, 0.001)


def test_tolerances_are_measured_with_a_margin():
    alone = [SAID, answer((4, -1.0))]
    behind = [answer((1, -0.5), (2, -0.35), (3, -0.125)), answer((5, -1.2), (6, -9.0))]
    found = Tolerances.measured(alone, behind, behind)
    assert found.rounding == pytest.approx(0.6)
    assert found.repeat == 1e-5
    assert Tolerances.measured(alone, alone, alone) == (1e-3, 1e-5)
