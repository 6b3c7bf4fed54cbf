"""Arrivals and popularity follow their distributions and repeat for equal seeds."""

from collections import Counter
from itertools import islice, pairwise
from math import exp, sqrt
from random import Random

import pytest

from loadtest.errors import BadOption
from loadtest.traffic.arrival_schedule import Step, parse_schedule, poisson_arrivals
from loadtest.traffic.zipf import zipf_draws

SEEDS = range(5)


def arrivals(schedule, seed):
    return list(poisson_arrivals(parse_schedule(schedule), Random(seed)))


def distance(values, share):
    """Return the scaled Kolmogorov distance of the values from the distribution function ``share``.

    Values of that distribution exceed 1.95 once in a thousand samples.
    """
    ordered = sorted(values)
    count = len(ordered)
    return max(max(share(x) - rank / count, (rank + 1) / count - share(x)) for rank, x in enumerate(ordered)) * sqrt(
        count
    )


def test_schedule_has_plateaus_and_ramps():
    assert parse_schedule("2:30, 0.5->10:60,0:5") == (Step(2, 2, 30), Step(0.5, 10, 60), Step(0, 0, 5))


@pytest.mark.parametrize("text", ["2:30,0.5->10:60,0:5", "1->0:10"])
def test_step_round_trips_as_text(text):
    assert ",".join(map(str, parse_schedule(text))) == text


@pytest.mark.parametrize("text", ["", "2", "2:", "-1:30", "1->:30", "2:0", "0:30", "2:30,", "nan:3", "1:2:3"])
def test_invalid_schedule_is_refused(text):
    with pytest.raises(BadOption, match="schedule"):
        parse_schedule(text)


def test_equal_seeds_give_equal_arrivals():
    assert arrivals("5:60", 1) == arrivals("5:60", 1)
    assert arrivals("5:60", 1) != arrivals("5:60", 2)


@pytest.mark.parametrize("seed", SEEDS)
def test_gaps_are_exponential(seed):
    gaps = [after - before for before, after in pairwise(arrivals("50:100", seed))]
    assert sum(gaps) / len(gaps) == pytest.approx(1 / 50, rel=4 / sqrt(5000))
    assert distance(gaps, lambda gap: 1 - exp(-50 * gap)) < 1.95


@pytest.mark.parametrize("schedule", ["1->99:100", "99->1:100", "0->100:100", "100->0:100"])
def test_arrivals_of_a_ramp_follow_its_rate(schedule):
    times = arrivals(schedule, 3)
    first, last = (float(rate) for rate in schedule.split(":")[0].split("->"))
    assert times == sorted(times)
    assert 0 < times[0] < times[-1] <= 100
    assert len(times) == pytest.approx(5000, abs=4 * sqrt(5000))
    slope = (last - first) / 100

    def share(at):
        return (first * at + slope * at * at / 2) / 5000

    assert distance(times, share) < 1.95


def test_steps_follow_each_other():
    times = arrivals("10:100,0:50,40:100", 1)
    counts = [sum(begin <= at < end for at in times) for begin, end in [(0, 100), (100, 150), (150, 250)]]
    assert counts[0] == pytest.approx(1000, abs=4 * sqrt(1000))
    assert counts[1] == 0
    assert counts[2] == pytest.approx(4000, abs=4 * sqrt(4000))
    assert sum(counts) == len(times)


@pytest.mark.parametrize("exponent", [0.0, 0.8, 1.2])
def test_questions_follow_zipfs_law(exponent):
    items = [f"q{number}" for number in range(50)]
    drawn = Counter(islice(zipf_draws(items, exponent, Random(5)), 20_000))
    weights = [rank**-exponent for rank in range(1, 51)]
    ranked = Random(5).sample(items, 50)
    for item, weight in zip(ranked, weights, strict=True):
        expected = 20_000 * weight / sum(weights)
        assert drawn[item] == pytest.approx(expected, abs=4 * sqrt(expected))


def test_ranks_are_shuffled():
    favourites = {Counter(islice(zipf_draws(range(50), 1.5, Random(seed)), 500)).most_common(1)[0][0] for seed in SEEDS}
    assert len(favourites) > 1
