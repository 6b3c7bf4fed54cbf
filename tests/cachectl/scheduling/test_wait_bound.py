"""The wait bound: the longest wait is hardly longer than first come, first served would have made it."""

import math

import pytest
from controller_integrity import check_integrity
from hypothesis import given
from hypothesis import strategies as st

from cachectl.scheduling.queue import CacheAwareQueue, Work
from protocol.errors import ConfigError


def _queue(slack: float, **seconds: float) -> CacheAwareQueue:
    """A queue whose younger queries have the higher priority."""
    queue = CacheAwareQueue(100, 100, slack=slack)
    for place, (query_id, each) in enumerate(seconds.items()):
        queue.push(query_id, Work(place, 1, each))
    return queue


def _served(queue: CacheAwareQueue) -> str:
    turn = queue.pop()
    assert turn is not None
    return turn.query_id


def _drain(queue: CacheAwareQueue) -> str:
    return "".join(turn.query_id for turn in iter(queue.pop, None))


def test_overtaking_ends_where_the_longest_wait_would_grow_too_much():
    # In order of arrival d waits the longest, 11 s. With d and c first, b waits for 11 s. With b first too, a would
    # wait for 12 s.
    assert _drain(_queue(1.0, a=3, b=4, c=4, d=4)) == "dcab"
    assert _drain(_queue(math.inf, a=3, b=4, c=4, d=4)) == "dcba"


def test_slack_lets_more_overtake():
    # The longest wait in order of arrival is 10 s. With d first, c would wait for 18 s.
    seconds = {"a": 1, "b": 8, "c": 1, "d": 9}
    assert _drain(_queue(1.0, **seconds)) == "abcd"
    assert _drain(_queue(1.8, **seconds)) == "dcba"


def test_a_stream_of_better_queries_delays_the_oldest_by_the_slack_only():
    queue = _queue(1.5, long=4, short=1)
    served = []
    for number in range(12):
        served.append(_served(queue))
        queue.push(str(number), Work(9 + number, 1, 1))
    # In order of arrival all would wait for the 4 s of `long`, which therefore waits for 6 s.
    assert served.index("long") == 6


def test_an_empty_queue_starts_anew():
    queue = _queue(1.0, a=100, b=100, c=100)
    assert _drain(queue) == "cba"
    for place, query_id in enumerate("de"):
        queue.push(query_id, Work(place, 1, 5))
    assert _served(queue) == "e"
    queue.push("f", Work(9, 1, 5))
    # d has waited for 5 s. That is what f would wait for in order of arrival, so d waits no longer.
    assert _served(queue) == "d"


def test_a_removed_query_counts_no_more():
    queue = _queue(1.0, a=4, b=50, c=4, d=5)
    assert queue.remove("b")
    check_integrity(queue)
    assert _served(queue) == "d"


def test_what_a_query_costs_by_now_decides():
    work = {"a": Work(0, 1, 4), "b": Work(1, 1, 9)}
    queue = CacheAwareQueue(100, 100, refresh=work.__getitem__, slack=1.0)
    for query_id, each in work.items():
        queue.push(query_id, each)
    check_integrity(queue)
    # b waits for 4 s in order of arrival. So would a, now that b costs no more.
    work["b"] = Work(1, 1, 4)
    assert _drain(queue) == "ba"


def test_a_negative_slack_is_refused():
    with pytest.raises(ConfigError, match="slack of -1"):
        CacheAwareQueue(1, 1, slack=-1)


@given(
    slack=st.floats(1.0, 2.0),
    steps=st.lists(st.none() | st.tuples(st.integers(0, 5), st.integers(0, 20)), max_size=80),
)
def test_no_wait_exceeds_the_longest_one_in_order_of_arrival_by_more_than_the_slack(slack, steps):
    """Time is the work served, as the engine does one prefill after another."""
    queue = CacheAwareQueue(100, 1000, slack=slack)
    costs: dict[str, int] = {}
    arrived_s: dict[str, int] = {}
    now_s = longest_s = 0
    for number, step in enumerate([*steps, *[None] * 80]):
        if step is not None:
            priority, seconds = step
            longest_s = max(longest_s, sum(costs.values()))
            costs[str(number)] = seconds
            arrived_s[str(number)] = now_s
            queue.push(str(number), Work(priority, 1, seconds))
        elif costs:
            query_id = _served(queue)
            assert now_s - arrived_s[query_id] <= slack * longest_s + 1e-6
            now_s += costs.pop(query_id)
            if not costs:
                longest_s = 0
        check_integrity(queue)
    assert not costs
