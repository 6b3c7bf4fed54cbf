"""The page allocator hands out each page once, with rising stamps. Nodes take whole pages, aligned to their prompt."""

import tracemalloc

import pytest
from controller_integrity import check_pages
from example_counts import examples
from histories import indices
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from cachectl.nodes.node import Node
from cachectl.tiers.page_allocator import PageAllocator
from protocol.errors import ConfigError
from protocol.kv import Pages, Paging

PAGE = 16


def test_pages_are_handed_out_from_the_lowest_number_with_rising_stamps():
    allocator = PageAllocator(4, PAGE, first_stamp=7)
    assert [allocator.hand_out(2 * PAGE), allocator.hand_out(PAGE)] == [Pages((0, 1), 7), Pages((2,), 8)]
    assert allocator.capacity == 4 * PAGE


def test_returned_pages_are_handed_out_again_with_a_new_stamp():
    allocator = PageAllocator(3, PAGE)
    first = allocator.hand_out(2 * PAGE)
    allocator.hand_out(PAGE)
    allocator.give_back(first)
    assert allocator.hand_out(2 * PAGE) == Pages(first.numbers, 3)


def test_handing_out_more_pages_than_exist_fails():
    allocator = PageAllocator(1, PAGE)
    with pytest.raises(AssertionError):
        allocator.hand_out(2 * PAGE)
    with pytest.raises(AssertionError):
        allocator.hand_out(PAGE - 1)


def test_giving_pages_back_twice_fails_even_after_reuse():
    allocator = PageAllocator(1, PAGE)
    pages = allocator.hand_out(PAGE)
    allocator.give_back(pages)
    with pytest.raises(AssertionError):
        allocator.give_back(pages)
    other = allocator.hand_out(PAGE)
    with pytest.raises(AssertionError):
        allocator.give_back(pages)
    check_pages(allocator, [other])


@pytest.mark.parametrize(
    ("pages", "tokens"),
    [
        (Pages((1, 2), 9), PAGE),
        (Pages((1,), 9), 2 * PAGE),
        (Pages((1, 1), 9), 2 * PAGE),
        (Pages((0,), 9), PAGE),
        (Pages((5,), 9), PAGE),
        (Pages((-1,), 9), PAGE),
        (Pages((1,), 1), PAGE),
    ],
    ids=["too many", "too few", "one twice", "taken", "beyond the end", "negative", "a stamp that is taken"],
)
def test_invalid_pages_are_not_taken_over_but_their_stamp_is_passed(pages, tokens):
    allocator = PageAllocator(5, PAGE)
    first = allocator.hand_out(PAGE)
    assert not allocator.take_over(pages, tokens)
    check_pages(allocator, [first])
    assert allocator.hand_out(PAGE).stamp == pages.stamp + 1 if pages.stamp > 1 else 2


def test_pages_are_known_by_the_first_one_until_they_are_given_back():
    allocator = PageAllocator(6, PAGE, first_stamp=5, first_page=10)
    one, two = allocator.hand_out(3 * PAGE), allocator.hand_out(PAGE)
    assert [allocator.pages(10), allocator.pages(13)] == [one, two] == [Pages((10, 11, 12), 5), Pages((13,), 6)]
    allocator.give_back(one)
    three = allocator.hand_out(4 * PAGE)
    assert allocator.pages(14) == three == Pages((14, 15, 10, 11), 7)
    for beyond in (9, 16, -1):
        with pytest.raises(AssertionError):
            allocator.pages(beyond)


@pytest.mark.parametrize(
    "other",
    [Pages((), 1), Pages((0,), 1), Pages((1, 0), 1), Pages((0, 1), 2), Pages((0, 1, 2), 1), Pages((4, 5), 1)],
    ids=["none", "a part", "another order", "another stamp", "more", "beyond the end"],
)
def test_only_what_was_handed_out_is_given_back(other):
    allocator = PageAllocator(4, PAGE)
    pages = allocator.hand_out(2 * PAGE)
    with pytest.raises(AssertionError):
        allocator.give_back(other)
    check_pages(allocator, [pages])


def test_pages_are_taken_over_from_anywhere_and_the_others_keep_their_order():
    allocator = PageAllocator(8, PAGE)
    first = allocator.hand_out(3 * PAGE)
    allocator.give_back(first)
    assert allocator.take_over(Pages((7, 4), 20), 2 * PAGE)
    assert allocator.take_over(Pages((2,), 30), PAGE)
    assert allocator.take_over(Pages((3,), 25), PAGE)
    assert not allocator.take_over(Pages((4,), 31), PAGE)
    assert not allocator.take_over(Pages((0,), 20), PAGE)
    allocator.settle()
    assert not allocator.take_over(Pages((0,), 20), PAGE)
    assert allocator.pages(7) == Pages((7, 4), 20)
    assert allocator.hand_out(4 * PAGE) == Pages((5, 6, 0, 1), 32)


def test_an_allocator_takes_a_few_bytes_a_page():
    pages, each = 100_000, 32
    tracemalloc.start()
    try:
        allocator = PageAllocator(pages, PAGE)
        for _ in range(pages // each):
            allocator.hand_out(each * PAGE)
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken < 5 * pages


@pytest.mark.parametrize("wrong", [(-1, PAGE, 1), (1, 0, 1), (1, PAGE, 0), (2**31, PAGE, 1)])
def test_invalid_allocator_sizes_are_refused(wrong):
    with pytest.raises(ConfigError, match="an arena needs"):
        PageAllocator(*wrong)


class PageAllocatorMachine(RuleBasedStateMachine):
    """Random use of pages: no two owners share a page, stamps only rise, and what was freed first goes first."""

    def __init__(self) -> None:
        super().__init__()
        self.allocator = PageAllocator(8, PAGE)
        self.taken: list[Pages] = []
        self.queue = list(range(8))
        self.highest = 0

    @property
    def free(self) -> int:
        return 8 - sum(len(pages.numbers) for pages in self.taken)

    @rule(wanted=st.integers(1, 8))
    def hand_out(self, wanted: int) -> None:
        if wanted <= self.free:
            pages = self.allocator.hand_out(wanted * PAGE)
            assert pages.stamp > self.highest
            assert list(pages.numbers) == self.queue[:wanted]
            self.queue = self.queue[wanted:]
            self.highest = pages.stamp
            self.taken.append(pages)

    @precondition(lambda self: self.taken)
    @rule(which=indices)
    def give_back(self, which: int) -> None:
        pages = self.taken.pop(which % len(self.taken))
        self.allocator.give_back(pages)
        self.queue += pages.numbers
        with pytest.raises(AssertionError):
            self.allocator.give_back(pages)

    @rule(numbers=st.lists(st.integers(-1, 8), min_size=1, max_size=3), stamp=st.integers(1, 60))
    def take_over(self, numbers: list[int], stamp: int) -> None:
        pages = Pages(tuple(numbers), stamp)
        there = {number for others in self.taken for number in others.numbers}
        fits = set(numbers) <= set(range(8)) - there and len(set(numbers)) == len(numbers)
        fits = fits and stamp not in {others.stamp for others in self.taken}
        assert self.allocator.take_over(pages, len(numbers) * PAGE) == fits
        self.highest = max(self.highest, stamp)
        if fits:
            self.taken.append(pages)
            self.queue = [number for number in self.queue if number not in numbers]

    @rule()
    def settle(self) -> None:
        self.allocator.settle()

    @invariant()
    def no_two_share_a_page(self) -> None:
        check_pages(self.allocator, self.taken)
        assert [self.allocator.pages(pages.numbers[0]) for pages in self.taken] == self.taken


TestPageAllocator = PageAllocatorMachine.TestCase
TestPageAllocator.settings = settings(max_examples=examples(100), deadline=None)


# Pages of a node


@pytest.mark.parametrize(
    ("prefix", "tokens", "room"),
    [(0, 1, 16), (0, 16, 16), (0, 17, 32), (16, 16, 16), (8, 8, 16), (8, 9, 32), (15, 2, 32), (15, 18, 48)],
)
def test_a_node_counts_every_page_that_holds_part_of_it(prefix, tokens, room):
    root = Node(b"", "root", 0, None, Paging(PAGE))
    above = Node(b"", "above", prefix, root, Paging(PAGE))
    assert Node(b"", "a", tokens, above, Paging(PAGE)).room == room
    assert Node(b"", "a", tokens, above).room == tokens
