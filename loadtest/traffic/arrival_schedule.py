"""Arrival times: a Poisson process whose rate follows a schedule of plateaus and ramps."""

import math
import re
from collections.abc import Iterator, Sequence
from random import Random
from typing import NamedTuple

from loadtest.errors import BadOption

_NUMBER = r"\d+(?:\.\d+)?"
_STEP = re.compile(rf"({_NUMBER})(?:->({_NUMBER}))?:({_NUMBER})")


class Step(NamedTuple):
    """``seconds`` in which the rate changes linearly from ``first_rate`` to ``last_rate``, in arrivals per second."""

    first_rate: float
    last_rate: float
    seconds: float

    @property
    def expected(self) -> float:
        """The expected number of arrivals."""
        return (self.first_rate + self.last_rate) / 2 * self.seconds

    def time_of(self, arrivals: float) -> float:
        """Return the seconds until this many arrivals are expected: the inverse of the integrated rate."""
        slope = (self.last_rate - self.first_rate) / self.seconds
        # This form of the quadratic formula also works for a slope of zero.
        root = math.sqrt(max(0.0, self.first_rate**2 + 2 * slope * arrivals))
        return 2 * arrivals / (self.first_rate + root)

    def __str__(self) -> str:
        """Format the step as in a schedule."""
        rate = (
            f"{self.first_rate:g}" if self.first_rate == self.last_rate else f"{self.first_rate:g}->{self.last_rate:g}"
        )
        return f"{rate}:{self.seconds:g}"


def parse_schedule(text: str) -> tuple[Step, ...]:
    """Parse ``2:30,4:30`` (plateaus: arrivals per second for 30 s each) or ``1->10:60`` (a ramp).

    Raises BadOption.
    """
    steps = []
    for part in text.split(","):
        found = _STEP.fullmatch(part.strip())
        if found is None:
            raise BadOption(f"schedule: {part!r} is not a step. Write RATE:SECONDS, or RATE->RATE:SECONDS for a ramp")
        first, last, seconds = found.groups()
        steps.append(Step(float(first), float(first if last is None else last), float(seconds)))
    if any(step.seconds == 0 for step in steps) or not any(step.expected for step in steps):
        raise BadOption(f"schedule: {text!r} has no arrivals, or has a step without duration")
    return tuple(steps)


def poisson_arrivals(steps: Sequence[Step], draws: Random) -> Iterator[float]:
    """Yield arrival times in seconds since the start of the schedule, in order.

    A process of rate 1 is stretched by the inverse of the integrated rate, which is exact for ramps too.
    """
    begin = expected = 0.0
    target = draws.expovariate(1.0)
    for step in steps:
        while target < expected + step.expected:
            yield begin + step.time_of(target - expected)
            target += draws.expovariate(1.0)
        expected += step.expected
        begin += step.seconds
