"""The queue serves the largest cached share first, and its window bounds how often a query is overtaken."""

from collections import Counter
from dataclasses import dataclass

import pytest
from controller_integrity import check_integrity
from example_counts import examples
from histories import indices, pick
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from cachectl.scheduling.queue import CacheAwareQueue, Work
from protocol.errors import ConfigError, InvalidRequest, Overloaded, UnknownPlan


def _pop(queue: CacheAwareQueue, fits=None) -> str | None:
    turn = queue.pop(fits)
    return None if turn is None else turn.query_id


def _drain(queue: CacheAwareQueue) -> str:
    return "".join(turn.query_id for turn in iter(queue.pop, None))


def _queue_of(window: int, **tokens: tuple[int, int]) -> CacheAwareQueue:
    queue = CacheAwareQueue(max_queued=100, window=window)
    for query_id, (cached, computed) in tokens.items():
        queue.push(query_id, Work(cached, computed))
    return queue


def overtaken(queue: CacheAwareQueue, query_id: str) -> int:
    """How many younger queries were served since a waiting one came."""
    return queue._overtaken(queue._waiting[query_id])


@pytest.mark.parametrize(
    ("cached", "computed", "expected"), [(0, 100, 0.0), (300, 100, 3.0), (100, 400, 0.25), (50, 0, 50.0), (0, 0, 0.0)]
)
def test_priority_is_cached_tokens_per_computed_token(cached, computed, expected):
    assert Work(cached, computed).priority == expected


def test_the_largest_cached_share_goes_first():
    # Priorities 0, 1/2, 4, 2.
    queue = _queue_of(9, a=(0, 900), b=(100, 200), c=(400, 100), d=(1000, 500))
    assert _drain(queue) == "cdba"


def test_a_small_computation_beats_a_large_cache():
    # 40 / 10 = 4 against 3000 / 1000 = 3.
    assert _drain(_queue_of(9, a=(3000, 1000), b=(40, 10))) == "ba"


def test_the_oldest_goes_first_among_equals():
    # 1/3 = 2/6 = 4/12, and 5/3 for d.
    assert _drain(_queue_of(9, a=(1, 3), b=(2, 6), c=(4, 12), d=(5, 3))) == "dabc"


def test_window_zero_is_first_come_first_served():
    queue = _queue_of(0, a=(0, 900), b=(100, 200), c=(400, 100), d=(1000, 500))
    assert _drain(queue) == "abcd"
    assert queue.largest_overtake == 0


def test_a_query_overtaken_as_often_as_the_window_allows_goes_next():
    # e and d overtake a, b and c. These go next, although f's priority of 5/2 is higher.
    queue = _queue_of(2, a=(0, 1), b=(1, 1), c=(2, 1), d=(3, 1), e=(4, 1), f=(5, 2))
    assert _drain(queue) == "edabcf"
    assert queue.largest_overtake == 2


def test_a_new_query_does_not_inherit_overtakes():
    queue = _queue_of(1, a=(0, 1), b=(9, 1))
    assert _pop(queue) == "b"
    queue.push("c", Work(0, 1))
    queue.push("d", Work(9, 1))
    assert [overtaken(queue, query_id) for query_id in queue] == [1, 0, 0]
    assert _drain(queue) == "adc"


def test_a_removed_query_has_overtaken_none():
    queue = _queue_of(1, a=(0, 1), b=(9, 1), c=(8, 1))
    assert queue.remove("b")
    assert not queue.remove("b")
    assert overtaken(queue, "a") == 0
    assert _drain(queue) == "ca"


def test_removing_the_oldest_leaves_the_others_their_own_counts():
    # b and d overtake a, and only d overtakes c. Then e and f overtake c, which goes next.
    queue = _queue_of(3, a=(0, 1), b=(9, 1), c=(0, 1), d=(8, 1), e=(7, 1), f=(6, 1))
    assert [_pop(queue), _pop(queue)] == ["b", "d"]
    assert [overtaken(queue, query_id) for query_id in queue] == [2, 1, 0, 0]
    queue.remove("a")
    assert [_pop(queue), _pop(queue), _pop(queue)] == ["e", "f", "c"]
    assert queue.largest_overtake == 3


def test_a_removed_query_does_not_count_for_the_largest_overtake():
    queue = _queue_of(9, a=(0, 1), b=(1, 1), c=(2, 1))
    assert [_pop(queue), _pop(queue)] == ["c", "b"]
    queue.remove("a")
    assert queue.largest_overtake == 1


def test_reprioritising_moves_a_query_and_keeps_its_age():
    queue = _queue_of(9, a=(1, 1), b=(2, 1), c=(3, 1))
    queue.reprioritise("a", Work(3, 1))
    assert list(queue) == ["a", "b", "c"]
    queue.reprioritise("b", Work(0, 1))
    assert _drain(queue) == "acb"


def test_a_fallen_priority_is_noticed_when_the_query_is_next():
    tokens = {"a": (1, 1), "b": (5, 1), "c": (3, 1)}
    queue = CacheAwareQueue(max_queued=3, window=9, refresh=lambda query_id: Work(*tokens[query_id]))
    for query_id, (cached, computed) in tokens.items():
        queue.push(query_id, Work(cached, computed))
    tokens["b"] = (2, 1)
    assert _drain(queue) == "cba"


def test_a_query_with_a_fallen_priority_stays_queued():
    tokens = {"a": (4, 1), "b": (5, 1)}
    queue = CacheAwareQueue(max_queued=3, window=9, refresh=lambda query_id: Work(*tokens[query_id]))
    for query_id, (cached, computed) in tokens.items():
        queue.push(query_id, Work(cached, computed))
    tokens["b"] = (1, 1)
    assert _pop(queue) == "a"
    queue.push("c", Work(2, 1))
    tokens["c"] = (2, 1)
    check_integrity(queue)
    assert _drain(queue) == "cb"


def test_a_pop_refreshes_each_query_at_most_once():
    calls: Counter[str] = Counter()

    def ever_less(query_id: str) -> Work:
        calls[query_id] += 1
        return Work(100 // 2 ** calls[query_id], 1)

    queue = CacheAwareQueue(max_queued=3, window=9, refresh=ever_less)
    for query_id in "abc":
        queue.push(query_id, Work(100, 1))
    assert _pop(queue) == "a"
    assert calls == Counter("abc")


def test_if_the_next_query_does_not_fit_none_is_served():
    queue = _queue_of(9, a=(0, 1), b=(2, 1), c=(1, 1))
    assert _pop(queue, "ac".__contains__) is None
    assert list(queue) == ["a", "b", "c"]
    assert _pop(queue, "b".__contains__) == "b"
    assert _drain(queue) == "ca"


def test_an_oldest_query_with_a_used_up_window_blocks_the_others_until_it_fits():
    queue = _queue_of(1, a=(0, 1), b=(2, 1), c=(1, 1))
    assert _pop(queue) == "b"
    assert _pop(queue, "c".__contains__) is None
    assert _drain(queue) == "ac"


def test_a_full_queue_refuses_and_names_the_number_waiting():
    queue = CacheAwareQueue(max_queued=2, window=1)
    queue.push("a", Work(0, 1))
    queue.push("b", Work(0, 1))
    with pytest.raises(Overloaded, match="2 queries wait"):
        queue.push("c", Work(0, 1))
    assert list(queue) == ["a", "b"]


def test_a_waiting_query_is_refused_even_if_the_queue_is_full():
    queue = CacheAwareQueue(max_queued=1, window=1)
    queue.push("a", Work(0, 1))
    with pytest.raises(InvalidRequest, match="waits already"):
        queue.push("a", Work(1, 1))


@pytest.mark.parametrize("tokens", [(-1, 1), (1, -1)])
def test_negative_tokens_are_refused_and_change_nothing(tokens):
    queue = _queue_of(1, a=(1, 1))
    with pytest.raises(InvalidRequest, match="negative"):
        queue.push("b", Work(*tokens))
    with pytest.raises(InvalidRequest, match="negative"):
        queue.reprioritise("a", Work(*tokens))
    check_integrity(queue)
    assert _drain(queue) == "a"


@pytest.mark.parametrize("bounds", [(-1, 0), (0, -1)])
def test_negative_bounds_are_refused(bounds):
    with pytest.raises(ConfigError):
        CacheAwareQueue(*bounds)


def test_a_query_that_does_not_wait_is_unknown():
    queue = _queue_of(1, a=(1, 1))
    _pop(queue)
    with pytest.raises(UnknownPlan, match="'a' does not wait"):
        queue.reprioritise("a", Work(1, 1))


def test_an_empty_queue_serves_none():
    queue = CacheAwareQueue(max_queued=0, window=0)
    assert _pop(queue) is None
    assert len(queue) == 0


def test_a_query_pushed_again_is_the_youngest():
    queue = _queue_of(9, a=(5, 1), b=(1, 1))
    assert _pop(queue) == "a"
    queue.push("a", Work(1, 1))
    assert list(queue) == ["b", "a"]
    assert _drain(queue) == "ba"


def test_memory_stays_bounded_in_a_long_stream():
    queue = CacheAwareQueue(max_queued=10, window=50)
    for number in range(20_000):
        queue.push(str(number), Work(number % 7, 1))
        for query_id in list(queue)[:3]:
            queue.reprioritise(query_id, Work(number % 5, 2))
        if len(queue) == 10:
            _pop(queue)
        if number % 500 == 0:
            check_integrity(queue)
    check_integrity(queue)
    assert len(queue._heap) <= 64
    assert len(queue._overtakers) <= 50


@given(
    window=st.integers(0, 4),
    steps=st.lists(st.none() | st.tuples(st.integers(0, 5), st.integers(0, 3)), max_size=60),
)
def test_no_query_starves(window, steps):
    """A query with p queries ahead at its arrival is served within p + window + 1 pops, whatever arrives later."""
    queue = CacheAwareQueue(max_queued=100, window=window)
    latest: dict[str, int] = {}
    pops = 0
    for number, step in enumerate([*steps, *[None] * 60]):
        if step is not None:
            latest[str(number)] = pops + len(queue) + window + 1
            queue.push(str(number), Work(*step))
        elif (served := _pop(queue)) is not None:
            pops += 1
            assert pops <= latest.pop(served)
    assert not latest


def test_a_stream_of_better_queries_delays_the_worst_by_the_window_only():
    queue = _queue_of(7, worst=(0, 1))
    served = []
    for number in range(20):
        queue.push(str(number), Work(100 + number, 1))
        served.append(_pop(queue))
    assert served.index("worst") == 7
    assert queue.largest_overtake == 7


@dataclass
class _Waiter:
    """A waiting query in the model: its true tokens, the priority last told to the queue, and its overtakes."""

    query_id: str
    sequence: int
    tokens: tuple[int, int]
    told: float
    overtaken: int = 0


_TOKENS = st.tuples(st.integers(0, 6), st.integers(0, 4))


class QueueMachine(RuleBasedStateMachine):
    """The queue against a model: a list that is searched from end to end."""

    @initialize(max_queued=st.integers(0, 12), window=st.integers(0, 5), refreshes=st.booleans())
    def start(self, max_queued, window, refreshes):
        self.max_queued, self.window, self.refreshes = max_queued, window, refreshes
        self.queue = CacheAwareQueue(max_queued, window, self.tell if refreshes else None)
        self.waiting: list[_Waiter] = []
        self.arrived = 0
        self.largest = 0
        self.asked: list[str] = []

    def tell(self, query_id):
        self.asked.append(query_id)
        return Work(*next(waiter.tokens for waiter in self.waiting if waiter.query_id == query_id))

    @rule(name=st.integers(0, 20), tokens=_TOKENS)
    def push(self, name, tokens):
        query_id = str(name)
        if any(waiter.query_id == query_id for waiter in self.waiting):
            with pytest.raises(InvalidRequest):
                self.queue.push(query_id, Work(*tokens))
        elif len(self.waiting) == self.max_queued:
            with pytest.raises(Overloaded, match=f"{self.max_queued} queries wait"):
                self.queue.push(query_id, Work(*tokens))
        else:
            self.queue.push(query_id, Work(*tokens))
            self.waiting.append(_Waiter(query_id, self.arrived, tokens, Work(*tokens).priority))
            self.arrived += 1

    @precondition(lambda self: self.waiting)
    @rule(which=indices, tokens=_TOKENS)
    def reprioritise(self, which, tokens):
        waiter = pick(self.waiting, which)
        self.queue.reprioritise(waiter.query_id, Work(*tokens))
        waiter.tokens, waiter.told = tokens, Work(*tokens).priority

    @precondition(lambda self: self.waiting and self.refreshes)
    @rule(which=indices, lost=st.integers(1, 6))
    def fall_untold(self, which, lost):
        waiter = pick(self.waiting, which)
        cached, computed = waiter.tokens
        lost = min(lost, cached)
        waiter.tokens = (cached - lost, computed + lost)

    @rule()
    def pop(self):
        self.asked.clear()
        turn = self.queue.pop()
        if not self.waiting:
            assert turn is None
            return
        oldest = self.waiting[0]
        if oldest.overtaken < self.window:
            # With refresh, only falls go untold, so the true priorities decide.
            value = (lambda waiter: Work(*waiter.tokens).priority) if self.refreshes else (lambda waiter: waiter.told)
            expected = max(self.waiting, key=lambda waiter: (value(waiter), -waiter.sequence))
        else:
            expected = oldest
        assert turn == (expected.query_id, expected.overtaken)
        assert len(self.asked) == len(set(self.asked))
        self.waiting.remove(expected)
        self.largest = max(self.largest, expected.overtaken)
        for waiter in self.waiting:
            waiter.overtaken += waiter.sequence < expected.sequence

    @rule(which=indices, name=st.integers(0, 20))
    def remove(self, which, name):
        query_id = pick(self.waiting, which).query_id if self.waiting and name % 2 else str(name)
        left = [waiter for waiter in self.waiting if waiter.query_id != query_id]
        assert self.queue.remove(query_id) == (len(left) < len(self.waiting))
        self.waiting = left

    @invariant()
    def agrees(self):
        if not hasattr(self, "queue"):
            return
        check_integrity(self.queue)
        assert list(self.queue) == [waiter.query_id for waiter in self.waiting]
        assert len(self.queue) == len(self.waiting)
        for waiter in self.waiting:
            assert waiter.query_id in self.queue
            assert overtaken(self.queue, waiter.query_id) == waiter.overtaken <= self.window
        assert self.queue.largest_overtake == self.largest <= self.window


TestQueueMachine = QueueMachine.TestCase
TestQueueMachine.settings = settings(max_examples=examples(120), stateful_step_count=60, deadline=None)
