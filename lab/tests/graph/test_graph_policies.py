"""The simulation of a cache of branches: what prompts share, what is kept, and whose turn is next."""

from collections import Counter
from random import Random

import pytest
from controller_integrity import check_integrity
from facts_by_hand import facts, forest, one_second_a_token, words

from cachectl.branches import BranchTree
from cachectl.policies.lookahead import Lookahead
from protocol.errors import ConfigError, UnknownPolicy
from ragtree_lab.graph.policies.benchmark import POLICIES, Compared, GraphPolicyBenchmark
from ragtree_lab.graph.policies.forest import NAMESPACE, Forest, distinct_tokens
from ragtree_lab.graph.policies.simulation import Setting, token_hit_rate
from ragtree_lab.graph.policies.streams import STREAMS
from ragtree_lab.graph.policies.waiting_line import ORDERS
from ragtree_lab.simulation.policies import create_simulated_policy

ALICE = forest("Alice likes Titanic type Tragedy", "Alice likes Titanic by Cameron")
BOB = forest("Bob likes Titanic by Cameron")


def tree(capacity: int, policy: str = "LRU") -> BranchTree:
    return BranchTree(create_simulated_policy(policy, Lookahead()), capacity, one_second_a_token)


def serve(cache: BranchTree, prompt: Forest) -> int:
    """Serve a prompt; the tokens that it finds."""
    found = cache.found(prompt.branches)
    cache.keep(NAMESPACE, prompt.branches, prompt.question_tokens)
    return found


def rate(stream: list[Forest], policy: str, cache: int, waiting: int = 0, order: str = "fifo") -> float:
    return token_hit_rate(stream, Setting(policy, cache, waiting, order), one_second_a_token)


def random_stream(seed: int, prompts: int = 60) -> list[Forest]:
    """Prompts with one to four paths of up to three relations, over few entities."""
    draws = Random(seed)
    stream = []
    for _ in range(prompts):
        lengths = [draws.randint(1, 3) for _ in range(draws.randint(1, 4))]
        paths = [" ".join([f"e{draws.randrange(4)}", *_steps(n, draws)]) for n in lengths]
        stream.append(forest(*paths))
    return stream


def _steps(count: int, draws: Random) -> list[str]:
    return [f"r{draws.randrange(2)} e{draws.randrange(4)}" for _ in range(count)]


# What prompts share


def test_a_branch_that_paths_begin_with_counts_once():
    assert [branch.tokens for branch in ALICE.branches] == [1] * 7
    assert [branch.parent for branch in ALICE.branches] == [-1, 0, 1, 2, 3, 2, 5]
    assert (ALICE.tokens, ALICE.question_tokens, ALICE.roots) == (7, 2, ["Alice"])


def test_branches_are_equal_behind_equal_ancestors_alone():
    again = forest("Alice likes Titanic by Cameron")
    assert set(again.keys) < set(ALICE.keys)
    # The same relations and entities behind another root are other branches.
    assert not set(BOB.keys) & set(ALICE.keys)
    assert distinct_tokens([ALICE, again, BOB]) == 7 + 5


# What is kept


def test_what_an_earlier_prompt_had_is_found():
    cache = tree(100)
    assert serve(cache, ALICE) == 0
    assert serve(cache, ALICE) == 7
    assert serve(cache, BOB) == 0
    assert serve(cache, forest("Alice likes Titanic year 1997")) == 3
    assert cache.found(forest("Alice likes Titanic year 1997", "Bob hates Titanic").branches) == 6


def test_leaves_leave_first_and_the_budget_holds():
    cache = tree(8)
    serve(cache, ALICE)
    # One token is free, and two more make room: the leaves of Alice's paths. The others attend to nothing that left.
    serve(cache, forest("Bob likes Titanic"))
    assert cache.found(ALICE.branches) == 5
    assert cache.found(forest("Alice likes Titanic").branches) == 3
    assert cache.found(forest("Bob likes Titanic").branches) == 3
    check_integrity(cache)


def test_a_prompt_larger_than_the_cache_keeps_its_beginning():
    cache = tree(4)
    serve(cache, ALICE)
    assert serve(cache, ALICE) == 4
    check_integrity(cache)


def test_nothing_is_kept_without_room():
    assert rate([ALICE, ALICE], "LRU", 0) == 0


@pytest.mark.parametrize("policy", [*POLICIES, "GDSF", "HYBRID"])
@pytest.mark.parametrize("waiting", [0, 5])
def test_with_room_for_all_only_new_branches_are_missed(policy, waiting):
    stream = random_stream(1)
    # Counted without any cache.
    seen: set[bytes] = set()
    found = 0
    for prompt in stream:
        found += sum(tokens for key, tokens in prompt.tokens_by_key.items() if key in seen)
        seen |= set(prompt.keys)
    share = found / sum(prompt.tokens for prompt in stream)
    assert rate(stream, policy, distinct_tokens(stream), waiting) == pytest.approx(share)
    assert rate(stream, policy, 20, waiting) < share


@pytest.mark.parametrize("seed", range(3))
def test_who_knows_the_future_finds_most(seed):
    stream = random_stream(seed)
    cache = distinct_tokens(stream) // 3
    clairvoyant = rate(stream, "BELADY", cache)
    assert all(clairvoyant > rate(stream, policy, cache) for policy in ("LRU", "LFU", "PGDSF", "LACR"))


@pytest.mark.parametrize("policy", ["LACR", "LACR-NORMALISED", "FORESIGHT"])
def test_policies_that_look_ahead_keep_what_waits(policy):
    stream = random_stream(2, 200)
    cache = distinct_tokens(stream) // 4
    assert rate(stream, policy, cache, waiting=8) > rate(stream, policy, cache)


@pytest.mark.parametrize("policy", ["LRU", "LFU", "PGDSF", "BELADY"])
def test_others_do_not_care_what_waits(policy):
    stream = random_stream(3)
    assert rate(stream, policy, 20, waiting=8) == rate(stream, policy, 20)


def test_unknown_names_are_refused():
    with pytest.raises(UnknownPolicy):
        rate([ALICE], "MRU", 10)
    with pytest.raises(ConfigError, match="choose one of fifo, lpm, lsp, cache-aware"):
        rate([ALICE], "LRU", 10, order="sjf")
    with pytest.raises(ConfigError, match="in advance"):
        rate([ALICE], "BELADY", 10, order="lpm")


# Whose turn is next

CAROL = forest("Carol likes Ghost")
SOME = {"bob": BOB, "carol": CAROL, "alice": forest("Alice likes Titanic"), "alice2": ALICE}


def turns(order: str, cache: BranchTree) -> list[str]:
    """The order of turns if nothing is kept of what is served."""
    line = ORDERS[order](cache, one_second_a_token)
    for query_id, prompt in SOME.items():
        line.enter(query_id, prompt)
    served = []
    while len(line):
        query_id, prompt = line.leave()
        assert prompt is SOME[query_id]
        served.append(query_id)
    return served


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ("fifo", ["bob", "carol", "alice", "alice2"]),
        # Of Alice's branches 3 of 3 and 5 of 7 tokens are kept, of Carol's all 3, of Bob's none.
        ("lpm", ["alice2", "carol", "alice", "bob"]),
        # 3 cached tokens over 2 computed ones, which are the question's, against 5 over 4.
        ("cache-aware", ["carol", "alice", "alice2", "bob"]),
        # Nothing was served before, so the oldest is first, and shares nothing with anybody.
        ("lsp", ["bob", "carol", "alice", "alice2"]),
    ],
)
def test_orders(order, expected):
    cache = tree(100)
    serve(cache, CAROL)
    serve(cache, forest("Alice likes Titanic by Cameron"))
    assert turns(order, cache) == expected


def test_lsp_goes_on_with_the_prompt_that_shares_most_with_the_last_one():
    line = ORDERS["lsp"](tree(0), one_second_a_token)
    line.enter("alice", ALICE)
    assert line.leave()[0] == "alice"
    for query_id, prompt in SOME.items():
        line.enter(query_id, prompt)
    assert [line.leave()[0] for _ in range(4)] == ["alice2", "alice", "bob", "carol"]


@pytest.mark.parametrize("order", ORDERS)
def test_every_prompt_is_served_once_in_every_order(order):
    stream = random_stream(4)
    reordered = rate(stream, "LRU", distinct_tokens(stream), 8, order)
    # With room for all, no order finds more or less than another one.
    assert reordered == pytest.approx(rate(stream, "LRU", distinct_tokens(stream)))


# Streams

ROOTS = [["a"], ["a", "b"], ["c"], ["d"], ["e"], ["f"], ["g"], ["h"]]


@pytest.mark.parametrize("kind", STREAMS)
def test_streams_repeat_by_seed_and_have_the_asked_length(kind):
    asked = STREAMS[kind](ROOTS, 500, Random(1))
    assert len(asked) == 500
    assert set(asked) <= set(range(len(ROOTS)))
    assert asked == STREAMS[kind](ROOTS, 500, Random(1)) != STREAMS[kind](ROOTS, 500, Random(2))


def test_uniform_asks_each_question_once_first():
    asked = STREAMS["uniform"](ROOTS, 16, Random(1))
    assert sorted(asked[:8]) == list(range(8))
    assert len(STREAMS["uniform"](ROOTS, 3, Random(1))) == 3


def test_zipf_draws_entities_by_rank():
    roots = [[f"entity{number}"] for number in range(50)]
    counts = [count for _, count in Counter(STREAMS["zipf"](roots, 20_000, Random(1))).most_common(4)]
    # 1 + 1/2 + ... + 1/50 = 4.4992
    assert [count / 20_000 for count in counts] == pytest.approx([0.222, 0.111, 0.074, 0.056], abs=0.01)


def test_temporal_asks_about_few_entities_at_a_time():
    roots = [[f"entity{number}"] for number in range(200)]
    asked = STREAMS["temporal"](roots, 2000, Random(1))
    windows = [len(set(asked[begin : begin + 32])) for begin in range(0, 2000, 32)]
    # Four sessions, of which one ends after 8 questions on average: about 4 + 32/8.
    assert sum(windows) / len(windows) == pytest.approx(8, abs=1.5)
    assert len(set(asked)) > 100


# The whole benchmark


def test_rows_have_intervals_and_gains_on_the_same_streams():
    questions = [facts(f"root{number % 3} r0 x{number} r1 y", "other r0 thing") for number in range(12)]
    compared = Compared(("LRU", "LFU", "LACR"), ("LRU",), sizes=(0.2, 1.0), waiting=(0, 4), seeds=3)
    steps = []
    benchmark = GraphPolicyBenchmark(compared, one_second_a_token, lambda *step: steps.append(step))
    result = benchmark.run({"some": questions}, 1000, words)
    assert len(result.policies) == 3 * 2 * 2 * 3
    assert len(result.orders) == 3 * 2 * len(ORDERS)
    assert result.sets["some"].prompts == 12
    assert result.sets["some"].tree_tokens == 8
    assert result.sets["some"].distinct_tokens == 3 * 2 + 12 * 3 + 3
    for row in (*result.policies, *result.orders):
        assert len(row.by_seed) == 3
        assert row.interval[0] <= row.token_hit_rate <= row.interval[1]
        assert row.gain_interval[0] <= row.gain <= row.gain_interval[1]
        if (row.policy, row.order) == ("LRU", "fifo"):
            assert (row.gain, row.gain_interval) == (0, (0, 0))
    (without, ahead) = result.means
    assert (without.waiting, ahead.waiting) == (0, 4)
    assert without.token_hit_rate["LRU"] == ahead.token_hit_rate["LRU"]
    assert ahead.token_hit_rate["LACR"] > without.token_hit_rate["LACR"]
    assert ahead.lacr_over["LRU"] == pytest.approx(ahead.token_hit_rate["LACR"] / ahead.token_hit_rate["LRU"])
    assert list(result.order_means[0].token_hit_rate) == list(ORDERS)
    assert steps[-1] == ("simulating some", 12, 12)


def test_facts_are_cut_and_a_set_without_any_is_refused():
    benchmark = GraphPolicyBenchmark(Compared(seeds=1), one_second_a_token, lambda *_: None)
    with pytest.raises(ConfigError, match="no question of some has facts within 2 tokens"):
        benchmark.run({"some": [facts("a r b"), facts()]}, 2, words)


def test_policies_are_known_before_anything_is_read():
    with pytest.raises(UnknownPolicy):
        GraphPolicyBenchmark(Compared(("LRU", "MRU")), one_second_a_token, lambda *_: None)
    with pytest.raises(ConfigError, match="in advance"):
        GraphPolicyBenchmark(Compared(order_policies=("BELADY",)), one_second_a_token, lambda *_: None)
