"""Both eviction orders, compared with plain tables of copies and their priorities."""

from collections.abc import Callable
from random import Random

import pytest
from controller_integrity import check_integrity
from example_counts import examples
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from cachectl.nodes.node import Copy, Node
from cachectl.policies import create_policy, sampled_order
from cachectl.policies.eviction_order import EvictionOrder
from cachectl.policies.lookahead import Lookahead
from cachectl.policies.priority_order import PriorityOrder
from cachectl.policies.sampled_order import SampledOrder
from cachectl.tiers.tier_cache import TierCache
from protocol.tiers import Tier

FEW = sampled_order._CANDIDATES
"""Up to this number of copies, the sampled order looks at all of them."""
DRAWS = 6
SOMEWHERE = TierCache(Tier.GPU, 1, create_policy("LRU", Lookahead()))

values = st.integers(-20, 20).map(float)


def copy_of(name: object) -> Copy:
    return Copy(Node(b"", str(name), 1, None), SOMEWHERE, held=True)


class Worth:
    """The priorities of copies. The order is told of ``base`` at accesses; ``bonus`` changes silently."""

    def __init__(self):
        self.base: dict[Copy, float] = {}
        self.bonus: dict[Copy, float] = {}

    def assess(self, copy: Copy) -> float:
        return self.base[copy]

    def current(self, copy: Copy) -> float:
        return copy.priority + self.bonus.get(copy, 0.0)

    def priority_order(self) -> PriorityOrder:
        return PriorityOrder(self.assess, self.current)

    def add(self, order: EvictionOrder, value: float, accessed: int = 0) -> Copy:
        """Put a new copy in the order."""
        copy = copy_of(len(self.base))
        copy.node.last_access = accessed
        self.base[copy] = value
        order.touch(copy)
        order.enter(copy)
        return copy

    def access(self, order: EvictionOrder, copy: Copy, value: float, accessed: int = 0) -> None:
        copy.node.last_access = accessed
        self.base[copy] = value
        order.touch(copy)


def drain(order: EvictionOrder) -> list[Copy]:
    """Evict all copies. Returns them in order."""
    gone = []
    while (lowest := order.lowest()) is not None:
        order.void(lowest[0])
        gone.append(lowest[0])
    return gone


# PriorityOrder


class PriorityMachine(RuleBasedStateMachine):
    """Copies come, go, rise silently, and fall when the order is told. The lowest is that of a sorted list."""

    def __init__(self):
        super().__init__()
        self.worth = Worth()
        self.order = self.worth.priority_order()
        self.all: list[Copy] = []
        self.entered: set[Copy] = set()
        self.tick = 0

    def rank(self, copy: Copy) -> tuple[float, int]:
        return self.worth.current(copy), copy.node.last_access

    @rule(value=values)
    def add(self, value):
        self.tick += 1
        copy = self.worth.add(self.order, value, self.tick)
        self.all.append(copy)
        self.entered.add(copy)

    @precondition(lambda self: self.all)
    @rule(data=st.data())
    def void(self, data):
        copy = data.draw(st.sampled_from(self.all))
        self.order.void(copy)
        self.entered.discard(copy)

    @precondition(lambda self: self.all)
    @rule(data=st.data())
    def enter_again(self, data):
        copy = data.draw(st.sampled_from(self.all))
        self.order.enter(copy)
        self.entered.add(copy)

    @precondition(lambda self: self.all)
    @rule(data=st.data(), by=st.integers(0, 10))
    def rise_silently(self, data, by):
        copy = data.draw(st.sampled_from(self.all))
        self.worth.bonus[copy] = self.worth.bonus.get(copy, 0.0) + by

    @precondition(lambda self: self.all)
    @rule(data=st.data(), by=st.integers(0, 10))
    def fall(self, data, by):
        copy = data.draw(st.sampled_from(self.all))
        self.worth.bonus[copy] = self.worth.bonus.get(copy, 0.0) - by
        self.order.reconsider(copy)

    @precondition(lambda self: self.all)
    @rule(data=st.data(), value=values, later=st.booleans())
    def access(self, data, value, later):
        copy = data.draw(st.sampled_from(self.all))
        self.tick += later
        self.worth.access(self.order, copy, value, self.tick)

    @rule()
    def evict(self):
        lowest = self.order.lowest()
        if lowest is None:
            assert not self.entered
        else:
            copy, value = lowest
            assert copy in self.entered
            assert value == self.worth.current(copy)
            assert self.rank(copy) == min(map(self.rank, self.entered))
            self.order.void(copy)
            self.entered.remove(copy)

    @rule(count=st.integers(0, 5))
    def look_at_a_few(self, count):
        few = self.order.lowest_few(count)
        assert len(set(few)) == len(few) <= count
        assert set(few) <= self.entered
        assert [self.rank(copy) for copy in few] == sorted(map(self.rank, few))

    @invariant()
    def tickets_and_entries_agree(self):
        check_integrity(self.order)
        assert {copy for copy in self.all if copy.ticket} == self.entered

    def teardown(self):
        expected = sorted(map(self.rank, self.entered))
        assert [self.rank(copy) for copy in drain(self.order)] == expected


TestPriorityOrder = PriorityMachine.TestCase
TestPriorityOrder.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)


def test_an_empty_order_has_no_lowest():
    assert Worth().priority_order().lowest() is None
    assert SampledOrder(lambda copy: 0.0, Random(0), DRAWS).lowest() is None


def test_among_equals_the_least_recently_used_goes_first():
    worth = Worth()
    order = worth.priority_order()
    copies = [worth.add(order, 1.0, accessed) for accessed in (3, 1, 2)]
    assert drain(order) == [copies[1], copies[2], copies[0]]


def test_an_access_with_the_same_priority_changes_the_order_of_equals():
    worth = Worth()
    order = worth.priority_order()
    first, second = worth.add(order, 1.0, 1), worth.add(order, 1.0, 2)
    worth.access(order, first, 1.0, accessed=3)
    assert order.lowest() == (second, 1.0)


def test_the_lowest_copy_stays_in_the_order():
    worth = Worth()
    order = worth.priority_order()
    copy = worth.add(order, 1.0)
    assert order.lowest() == order.lowest() == (copy, 1.0)
    order.void(copy)
    assert order.lowest() is None


def test_an_access_that_raises_a_priority_adds_no_entry():
    worth = Worth()
    order = worth.priority_order()
    copies = [worth.add(order, 0.0) for _ in range(10)]
    for value in range(1, 1000):
        for copy in copies:
            worth.access(order, copy, float(value), value)
    assert len(order._entries) == 10
    assert order.lowest()[1] == 999.0


def fall_again_and_again(worth: Worth, order: PriorityOrder, copy: Copy) -> None:
    worth.bonus[copy] = worth.bonus.get(copy, 0.0) - 1
    order.reconsider(copy)


def leave_and_come_back(worth: Worth, order: PriorityOrder, copy: Copy) -> None:
    order.void(copy)
    order.enter(copy)


@pytest.mark.parametrize("live", [1, 10, 100])
@pytest.mark.parametrize("change", [fall_again_and_again, leave_and_come_back])
def test_void_entries_are_swept(change: Callable, live):
    worth = Worth()
    order = worth.priority_order()
    copies = [worth.add(order, float(number)) for number in range(live)]
    most = 0
    for _ in range(3000 // live):
        for copy in copies:
            change(worth, order, copy)
            most = max(most, len(order._entries))
    assert live < most <= 64 + 2 * live
    check_integrity(order)
    assert len(drain(order)) == live
    assert order._entries == []


# SampledOrder


class SampledMachine(RuleBasedStateMachine):
    """Copies come and go, and priorities change silently. The order only returns copies that are in it."""

    def __init__(self):
        super().__init__()
        self.values: dict[Copy, float] = {}
        self.entered: set[Copy] = set()

    @initialize(seed=st.integers(0, 9), copies=st.integers(0, 3 * FEW))
    def build(self, seed, copies):
        self.order = SampledOrder(self.values.__getitem__, Random(seed), DRAWS)
        for number in range(copies):
            self.add(float(number))

    @rule(value=values)
    def add(self, value):
        copy = copy_of(len(self.values))
        self.values[copy] = value
        self.order.touch(copy)
        self.order.enter(copy)
        self.entered.add(copy)

    @precondition(lambda self: self.values)
    @rule(data=st.data())
    def enter_again(self, data):
        copy = data.draw(st.sampled_from(list(self.values)))
        self.order.enter(copy)
        self.entered.add(copy)

    @precondition(lambda self: self.values)
    @rule(data=st.data())
    def void(self, data):
        copy = data.draw(st.sampled_from(list(self.values)))
        self.order.void(copy)
        self.entered.discard(copy)

    @precondition(lambda self: self.values)
    @rule(data=st.data(), value=values, told=st.booleans())
    def change(self, data, value, told):
        copy = data.draw(st.sampled_from(list(self.values)))
        self.values[copy] = value
        if told:
            self.order.touch(copy)
            self.order.reconsider(copy)

    @rule(evicted=st.booleans())
    def ask_for_the_lowest(self, evicted):
        lowest = self.order.lowest()
        if lowest is None:
            assert not self.entered
            return
        copy, value = lowest
        assert copy in self.entered
        assert value == self.values[copy]
        if len(self.entered) <= FEW:
            assert value == min(self.values[other] for other in self.entered)
        if evicted:
            self.order.void(copy)
            self.entered.remove(copy)

    @rule(count=st.integers(0, 3 * FEW))
    def look_at_a_few(self, count):
        few = self.order.lowest_few(count)
        assert len(set(few)) == len(few) == min(count, len(self.entered))
        assert set(few) <= self.entered
        assert [self.values[copy] for copy in few] == sorted(self.values[copy] for copy in few)

    @invariant()
    def tickets_are_indices_in_the_list(self):
        check_integrity(self.order)
        assert sorted(copy.ticket for copy in self.entered) == list(range(1, len(self.entered) + 1))
        assert not any(copy.ticket for copy in self.values if copy not in self.entered)
        assert set(self.order._copies) == self.entered
        assert set(self.order._candidates) <= self.entered
        assert len(self.order._candidates) <= 3 * FEW

    def teardown(self):
        if self.entered:
            assert set(drain(self.order)) == self.entered


TestSampledOrder = SampledMachine.TestCase
TestSampledOrder.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)


def sampled(seed: int, worth: list[float]) -> tuple[SampledOrder, dict[Copy, float]]:
    """An order of copies with these priorities."""
    table = {copy_of(number): value for number, value in enumerate(worth)}
    order = SampledOrder(table.__getitem__, Random(seed), DRAWS)
    for copy in table:
        order.enter(copy)
    return order, table


def evictions(seed: int, worth: list[float], many: int) -> list[float]:
    """The priorities of evicted copies in order. Two touches follow each eviction."""
    order, table = sampled(seed, worth)
    gone = []
    for _ in range(many):
        copy, value = order.lowest()
        assert value == table[copy]
        order.void(copy)
        for _ in range(2):
            order.touch(copy)
        gone.append(value)
    return gone


@pytest.mark.parametrize("count", [0, 1, 16, 200])
def test_lowest_few_by_priority_is_exact_and_changes_nothing(count):
    orders = []
    for _ in range(2):
        worth, random = Worth(), Random(1)
        order = worth.priority_order()
        for tick, value in enumerate(random.sample(range(1000), 100)):
            worth.add(order, float(value), tick)
        orders.append(order)
    looked_at, other = orders
    few = looked_at.lowest_few(count)
    gone = drain(looked_at)
    assert few == gone[:count]
    assert [copy.priority for copy in gone] == [copy.priority for copy in drain(other)]


def test_lowest_few_by_samples_takes_the_candidates_and_changes_nothing():
    looked_at, table = sampled(3, [float(value) for value in range(500)])
    other, _ = sampled(3, [float(value) for value in range(500)])
    for order in (looked_at, other):
        order.lowest()
    few = looked_at.lowest_few(16)
    assert table[few[0]] <= looked_at.lowest()[1]
    assert len(few) == 16
    assert [copy.node.content for copy in drain(looked_at)] == [copy.node.content for copy in drain(other)]


def test_few_copies_go_in_exact_order():
    worth = [float(value) for value in Random(1).sample(range(100), FEW)]
    assert evictions(0, worth, FEW) == sorted(worth)


def test_the_same_seed_evicts_the_same_copies():
    worth = [Random(2).random() for _ in range(500)]
    worth = [value + number / 500 for number, value in enumerate(worth)]
    assert evictions(7, worth, 200) == evictions(7, worth, 200)
    assert evictions(7, worth, 200) != evictions(8, worth, 200)


def ranks_of_evicted(seed: int) -> list[float]:
    """Evicts 200 of 1,000 copies of random priorities. Returns the share of remaining copies below each one."""
    random = Random(100 + seed)
    worth = [random.random() for _ in range(1000)]
    left = sorted(worth)
    ranks = []
    for value in evictions(seed, worth, 200):
        rank = left.index(value)
        ranks.append(rank / len(left))
        del left[rank]
    return ranks


def test_kept_candidates_beat_blind_draws():
    ranks = [ranks_of_evicted(seed) for seed in range(5)]
    mean = sum(map(sum, ranks)) / 1000
    # The lowest of n blind draws ranks at 1 / (n + 1) on average. With n draws for each eviction, at best the lowest
    # 1 / n of all copies are evicted, which rank at 1 / (2 n) on average.
    assert mean < 1.2 / (2 * DRAWS) < 0.8 / (DRAWS + 1)
    # After the first blind draws, hardly any evicted copy ranks above twice the ideal share.
    assert sum(rank > 2 / DRAWS for seen in ranks for rank in seen[20:]) < 0.02 * 900


def test_evicted_copies_are_among_the_lowest_few_percent():
    assert sum(sum(ranks_of_evicted(seed)) for seed in range(5)) / 1000 < 0.09


@pytest.mark.parametrize("seed", range(10))
def test_a_candidate_that_has_risen_is_passed_over(seed):
    order, table = sampled(seed, [float(number) for number in range(100)])
    lowest = None
    for _ in range(50):
        lowest, _ = order.lowest()
    table[lowest] = 1000.0
    copy, value = order.lowest()
    assert copy is not lowest
    assert value == table[copy] < 100


def test_a_candidate_that_has_fallen_is_evicted_with_its_current_priority():
    order, table = sampled(0, [float(number) for number in range(100)])
    lowest, _ = order.lowest()
    table[lowest] = -5.0
    assert order.lowest() == (lowest, -5.0)


def test_copies_that_all_fall_alike_are_evicted_in_order():
    # Chances of reuse fall as time passes: every priority is lower at each call.
    order, table = sampled(0, [float(number) for number in range(200)])
    gone = []
    for _ in range(100):
        for copy in table:
            table[copy] -= 1.0
        copy, value = order.lowest()
        assert value == table[copy]
        order.void(copy)
        for _ in range(2):
            order.touch(copy)
        gone.append(int(copy.node.content))
    assert len(set(gone)) == 100
    # The lowest hundred of two hundred have a mean of 49.5.
    assert sum(gone) / 100 < 65


def test_draws_for_a_burst_of_evictions_are_made_by_later_touches():
    order, table = sampled(0, [float(number) for number in range(1000)])
    looked_at: list[Copy] = []

    def look(copy: Copy) -> float:
        looked_at.append(copy)
        return table[copy]

    order._current = look
    order.lowest()
    before = len(looked_at)
    for _ in range(4):
        copy, _ = order.lowest()
        order.void(copy)
    # No priority has risen, so each eviction looks at one copy only.
    assert len(looked_at) - before == 4
    touches = 0
    while order._owed:
        order.touch(copy)
        touches += 1
    assert len(looked_at) - before == 4 + 4 * DRAWS
    assert touches > 2 * DRAWS
