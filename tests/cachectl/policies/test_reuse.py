"""Histories stay within bounds, and the model learns from them what reuse looks like."""

from collections import OrderedDict
from math import exp, isfinite, log2
from random import Random
from unittest.mock import patch

import pytest
from example_counts import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from cachectl.policies import reuse as histories_module
from cachectl.policies.reuse import HALF_LIVES, Example, Histories, History, Popularity, ReuseModel, counted

gaps = st.lists(st.integers(1, 3000), max_size=30)


def history_of(ticks, depth: int = 0, document: Popularity | None = None) -> History:
    """A path that was used at these requests."""
    history = History(b"", depth, "document", document or Popularity())
    for tick in ticks:
        history.use(tick)
    return history


def ticks_of(gaps, first: int = 1) -> list[int]:
    ticks = [first]
    for gap in gaps:
        ticks.append(ticks[-1] + gap)
    return ticks


# A path's history


@given(gaps)
def test_decayed_counts_are_the_sum_of_decayed_uses(gaps):
    ticks = ticks_of(gaps)
    history = history_of(ticks)
    for decayed, half_life in zip(history.decayed, HALF_LIVES, strict=True):
        left = sum(0.5 ** ((ticks[-1] - tick) / half_life) for tick in ticks)
        assert decayed == pytest.approx(log2(left), abs=1e-6)
    assert (history.uses, history.last) == (len(ticks), ticks[-1])


def test_a_count_that_has_decayed_starts_at_one_again():
    assert counted(5.0, 1e9, 64.0) == 0.0
    assert counted(0.0, 0, 64.0) == 1.0
    assert counted(0.0, 64, 64.0) == pytest.approx(log2(1.5))


def test_a_row_is_a_class_of_depth_and_uses():
    rows = {}
    for depth in (0, 1, 2, 10, 100):
        history = history_of([], depth)
        seen = [history.row]
        for tick in range(1, 200):
            history.use(tick)
            seen.append(history.row)
        assert [uses for uses in range(1, 200) if seen[uses] != seen[uses - 1]] == [2, 3, 4, 6, 10, 20, 50]
        rows[depth] = set(seen)
    # Depths near the root have rows of their own. Deep ones share theirs.
    assert len(rows[0] | rows[1] | rows[2]) == 3 * 8
    assert rows[10] == rows[100]


def test_a_documents_popularity_sums_all_its_paths():
    histories = Histories(Random(0))
    for tick, key in enumerate([b"a", b"b", b"a", b"c"], start=1):
        histories.of(key, 0, "shared").use(tick)
    shared = histories.get(b"a").document
    assert shared is histories.get(b"b").document
    left = sum(0.5 ** ((4 - tick) / HALF_LIVES[2]) for tick in range(1, 5))
    assert shared.count == pytest.approx(log2(left))
    assert (shared.last, shared.paths) == (4, 3)


def test_a_document_may_be_used_twice_by_one_request():
    document = Popularity()
    for history in (history_of([], 0, document), history_of([], 1, document)):
        history.use(5)
    assert document.count == pytest.approx(1.0)


# All histories


class HistoriesMachine(RuleBasedStateMachine):
    """Paths are used, kept, evicted and forgotten. Residents are never forgotten, ghosts oldest first."""

    FEWEST = 3

    def __init__(self):
        super().__init__()
        self.patched = patch.object(histories_module, "_FEWEST", self.FEWEST)
        self.patched.start()
        self.histories = Histories(Random(0))
        self.residents: set[bytes] = set()
        self.ghosts: OrderedDict[bytes, None] = OrderedDict()
        self.tick = 0

    def content(self, key: bytes) -> str:
        return f"document {key[0] % 5}"

    def use(self, key: bytes) -> History:
        history = self.histories.of(key, key[0] % 4, self.content(key))
        if key not in self.residents:
            self.ghosts.pop(key, None)
            self.ghosts[key] = None
        return history

    @rule(keys=st.lists(st.integers(0, 40), min_size=1, max_size=4, unique=True), kept=st.booleans())
    def serve(self, keys, kept):
        self.tick += 1
        for number in keys:
            key = bytes([number])
            history = self.use(key)
            history.use(self.tick)
            history.example = Example(self.tick, history, (), 0)
        if kept and key not in self.residents:
            history = self.use(key)
            self.histories.set_resident(history, True)
            self.residents.add(key)
            del self.ghosts[key]

    @precondition(lambda self: self.residents)
    @rule(data=st.data())
    def evict(self, data):
        key = data.draw(st.sampled_from(sorted(self.residents)))
        self.residents.remove(key)
        self.histories.set_resident(self.histories.get(key), False)
        self.ghosts[key] = None

    @rule()
    def forget_oldest(self):
        bound = max(self.FEWEST, 2 * len(self.residents))
        going = [self.histories.get(key) for key in list(self.ghosts)[: max(0, len(self.ghosts) - bound)]]
        self.histories.forget_oldest()
        for history in going:
            del self.ghosts[history.key]
            assert history.example is None
        assert len(self.histories._ghosts) <= bound

    @rule()
    def draw(self):
        drawn = self.histories.drawn()
        assert (drawn is None) == (not len(self.histories))
        assert drawn is None or self.histories.get(drawn.key) is drawn

    @invariant()
    def books_agree(self):
        histories, remembered = self.histories, self.residents | self.ghosts.keys()
        assert len(histories) == len(remembered)
        assert all(histories.get(key).resident for key in self.residents)
        assert not any(histories.get(key).resident for key in self.ghosts)
        assert [history.key for history in histories._ghosts] == list(self.ghosts)
        assert {history.key for history in histories._table} == remembered
        assert all(histories._table[histories.get(key).at].key == key for key in remembered)
        # Documents are forgotten with their last path.
        assert histories._documents.keys() == {self.content(key) for key in remembered}
        for content, document in histories._documents.items():
            paths = [key for key in remembered if self.content(key) == content]
            assert document.paths == len(paths)
            assert all(histories.get(key).document is document for key in paths)

    def teardown(self):
        self.patched.stop()


TestHistories = HistoriesMachine.TestCase
TestHistories.settings = settings(max_examples=examples(50), stateful_step_count=40, deadline=None)


def test_new_paths_leave_all_residents_and_a_bounded_number_of_ghosts():
    histories = Histories(Random(0))
    residents = [b"resident %d" % number for number in range(300)]
    for key in residents:
        histories.set_resident(histories.of(key, 0, key.decode()), True)
    for tick in range(5000):
        histories.of(b"%d" % tick, 0, f"{tick}").use(tick)
        histories.forget_oldest()
    assert len(histories) == 300 + 600
    assert all(histories.get(key) is not None for key in residents)
    assert [histories.get(b"%d" % tick) is None for tick in (4399, 4400)] == [True, False]


def test_some_ghosts_are_remembered_without_residents():
    histories = Histories(Random(0))
    for tick in range(2000):
        histories.of(b"%d" % tick, 0, "same").use(tick)
        histories.forget_oldest()
    assert len(histories) == 500


def test_a_path_that_returns_has_its_history():
    histories = Histories(Random(0))
    history = histories.of(b"a", 0, "a")
    for tick in range(1, 6):
        history.use(tick)
    histories.set_resident(history, True)
    histories.set_resident(history, False)
    assert histories.of(b"a", 0, "a") is history
    assert history.uses == 5


def test_all_paths_are_drawn_with_the_same_probability():
    histories = Histories(Random(0))
    for number in range(20):
        histories.of(b"%d" % number, 0, "same")
    draws = [histories.drawn() for _ in range(20_000)]
    counts = [draws.count(history) for history in histories._table]
    assert 800 < min(counts) <= max(counts) < 1200


# The model


def area_under_curve(model: ReuseModel, examples: list[tuple[Example, bool]]) -> float:
    """The share of pairs of a used and an unused path in which the model ranks the used one higher."""
    used = [logit_of(model, example) for example, again in examples if again]
    unused = [logit_of(model, example) for example, again in examples if not again]
    assert used
    assert unused
    better = sum((one > other) + 0.5 * (one == other) for one in used for other in unused)
    return better / (len(used) * len(unused))


def logit_of(model: ReuseModel, example: Example) -> float:
    """w·f + t[cell], the formula of ``ReuseModel``."""
    products = (weight * feature for weight, feature in zip(model._weights, example.features, strict=True))
    return sum(products) + model._corrections[example.cell]


def blank() -> ReuseModel:
    """A model with weights of 0."""
    model = ReuseModel()
    model._weights = [0.0] * len(model._weights)
    return model


paths = st.builds(
    lambda gaps, depth, other, first, last: (ticks_of(gaps, first), depth, other, last),
    gaps,
    st.integers(0, 6),
    gaps,
    st.integers(1, 100),
    st.booleans(),
)


def described(path) -> History:
    """A history whose document also stands on another path."""
    ticks, depth, other, last_in_request = path
    document = Popularity()
    own, namesake = history_of([], depth, document), history_of([], 0, document)
    elsewhere = ticks_of(other)
    for tick in sorted({*ticks, *elsewhere}):
        if tick <= ticks[-1]:
            for used, history in ((tick in ticks, own), (tick in elsewhere, namesake)):
                if used:
                    history.use(tick)
    own.last_in_request = last_in_request
    return own


@given(
    path=paths,
    age=st.one_of(st.integers(0, 70), st.integers(0, 10**7)),
    lessons=st.lists(st.tuples(paths, st.integers(0, 5000), st.booleans()), max_size=8),
)
@settings(max_examples=examples(100), deadline=None)
def test_a_logit_is_the_weighted_sum_of_an_examples_features(path, age, lessons):
    model, history = ReuseModel(), described(path)
    tick = history.last + age
    # Learning from the path itself moves its own correction.
    for other, other_age, used in lessons:
        taught = described(other)
        model.learn(model.example(taught, taught.last + other_age), used)
        model.learn(model.example(history, tick), used)
    example = model.example(history, tick)
    assert model.logit(history, tick) == pytest.approx(logit_of(model, example), abs=1e-9)
    assert (example.tick, example.history) == (tick, history)


@given(path=paths, age=st.integers(0, 10**9), used=st.booleans())
@settings(deadline=None)
def test_learning_moves_the_logit_towards_the_outcome(path, age, used):
    model, history = ReuseModel(), described(path)
    tick = history.last + age
    before = model.logit(history, tick)
    model.learn(model.example(history, tick), used)
    after = model.logit(history, tick)
    assert isfinite(after)
    assert (after > before) if used else (after < before)


def test_a_new_model_prefers_young_frequent_and_shallow_paths():
    model = ReuseModel()
    frequent = history_of(range(1, 11))
    assert model.logit(frequent, 11) > model.logit(frequent, 50) > model.logit(frequent, 5000)
    assert model.logit(frequent, 20) > model.logit(history_of([10]), 20)
    assert model.logit(history_of([10], depth=0), 20) > model.logit(history_of([10], depth=1), 20)


def stream(random: Random, requests: int) -> list[tuple[Example, bool]]:
    """Examples of traffic in which 50 paths are used again and again and others once, in order of outcome."""
    describe = ReuseModel()
    regular = [history_of([]) for _ in range(50)]
    waiting: dict[int, Example] = {}
    outcomes = []
    for tick in range(1, requests + 1):
        history = random.choice(regular) if random.random() < 0.6 else history_of([])
        if id(history) in waiting:
            example = waiting.pop(id(history))
            outcomes.append((example, tick - example.tick <= 200))
        history.use(tick)
        if random.random() < 0.3:
            waiting[id(history)] = describe.example(history, tick)
        late = [key for key, example in waiting.items() if tick - example.tick > 200]
        outcomes += [(waiting.pop(key), False) for key in late]
    return outcomes


def test_a_blank_model_learns_that_frequent_paths_are_used_again():
    model, outcomes = blank(), stream(Random(1), 9000)
    taught, held_out = outcomes[:-800], outcomes[-800:]
    assert area_under_curve(model, held_out) == 0.5
    for example, used in taught:
        model.learn(example, used)
    assert area_under_curve(model, held_out) > 0.9


def test_it_learns_calibrated_probabilities():
    model, outcomes = blank(), stream(Random(1), 9000)
    taught, held_out = outcomes[:-800], outcomes[-800:]
    for example, used in taught:
        model.learn(example, used)
    expected = sum(1 / (1 + exp(-logit_of(model, example))) for example, _ in held_out)
    assert expected / 800 == pytest.approx(sum(used for _, used in held_out) / 800, abs=0.05)


def by_age(random: Random, young_again: bool) -> tuple[Example, bool]:
    """An example of traffic in which young paths are used again, or only old ones, as in a loop."""
    young = random.random() < 0.5
    history = history_of([1, 2])
    age = random.randrange(1, 20) if young else random.randrange(200, 2000)
    return ReuseModel().example(history, 2 + age), (young == young_again) == (random.random() < 0.95)


def test_it_follows_a_change_of_traffic():
    random = Random(3)
    model = ReuseModel()
    held_out = {young: [by_age(random, young) for _ in range(300)] for young in (True, False)}
    for young, other in ((True, False), (False, True), (True, False)):
        for _ in range(6000):
            model.learn(*by_age(random, young))
        assert area_under_curve(model, held_out[young]) > 0.9
        assert area_under_curve(model, held_out[other]) < 0.1


def test_it_learns_what_depth_means():
    # The opposite of the initial weights: only deep paths are used again.
    random = Random(4)

    def example() -> tuple[Example, bool]:
        deep = random.random() < 0.5
        history = history_of([1], depth=random.choice([1, 3]) if deep else 0)
        return ReuseModel().example(history, 1 + random.randrange(1, 500)), deep

    model, held_out = ReuseModel(), [example() for _ in range(300)]
    assert area_under_curve(model, held_out) < 0.5
    for _ in range(2000):
        model.learn(*example())
    assert area_under_curve(model, held_out) > 0.95


def test_one_sided_outcomes_keep_every_number_finite():
    model, history = ReuseModel(), history_of(range(1, 100))
    example = model.example(history, 10**8)
    for used in (True, False):
        for _ in range(20_000):
            model.learn(example, used)
        assert all(map(isfinite, [*model._weights, *model._squares, *model._corrections, *model._correction_squares]))
        assert (model.logit(history, 10**8) > 0) is used
