"""Documents are composed where that brings the first token sooner than computing them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachectl.nodes.node import Copy, Node, PathDocument
from cachectl.policies import create_policy
from cachectl.policies.lookahead import Lookahead
from cachectl.tiers.own_loads import OwnLoads
from cachectl.tiers.peer_links import PeerLinks
from cachectl.tiers.tier_cache import TierCache
from cachectl.tree.load_or_recompute import Loading, LoadOrRecompute, TreeCosts
from protocol.generation import ASKED_TOKENS
from protocol.tiers import Tier

QUESTION = 4
NOTHING = Loading(0, 0, 0.0)
POLICY = create_policy("LRU", Lookahead())
HOST = TierCache(Tier.HOST, 1, POLICY)
CACHES = {Tier.HOST: HOST, Tier.GPU: TierCache(Tier.GPU, 1, POLICY, "one", slower=HOST)}


def a_second_a_token(cached: int, new: int) -> float:
    return float(new)


def donors(tokens: list[int | None], tier: Tier = Tier.HOST) -> list[Copy | None]:
    """Copies of documents of so many tokens; None for those that have none."""
    return [
        Copy(Node(b"", "document", count, None), CACHES[tier], held=True) if count is not None else None
        for count in tokens
    ]


def choose(
    tokens: list[int],
    given: list[int | None] | None = None,
    share=0.2,
    load_s=0.0,
    move_s=0.0,
    constant_s=0.0,
    loading=NOTHING,
):
    costs = TreeCosts(a_second_a_token, lambda tokens, _: tokens * load_s, move_s=move_s)
    loads = OwnLoads(costs.load)
    for _ in range(3):
        loads.measured("one", Tier.HOST, 100, 100 * load_s + constant_s)
    rule = LoadOrRecompute(costs, loads, PeerLinks())
    documents = [PathDocument(str(number), count) for number, count in enumerate(tokens)]
    return rule.composing(
        donors(tokens if given is None else given), documents, loading, QUESTION, share, CACHES[Tier.GPU]
    )


def test_a_share_of_what_is_donated_is_computed_again():
    composing = choose([50, 100])
    assert composing is not None
    assert composing.reused == 40 + 80
    # Selecting runs the question once more.
    assert composing.seconds == QUESTION


def test_selecting_costs_no_more_behind_a_long_conversation():
    rule = LoadOrRecompute(TreeCosts(a_second_a_token), OwnLoads(), PeerLinks())
    composing = rule.composing(donors([100]), [PathDocument("a", 100)], NOTHING, 5000, 0.2, CACHES[Tier.GPU])
    assert composing is not None
    assert composing.seconds == ASKED_TOKENS


def test_loading_the_donors_has_to_pay_for_what_a_load_takes_besides():
    # Composing spares 120 tokens of 155, and selects in 5 seconds.
    assert choose([50, 100], constant_s=100).seconds == QUESTION + 100
    assert choose([50, 100], constant_s=125) is None
    # The prefix in front of them has to be loaded anyhow.
    assert choose([50, 100], constant_s=125, loading=Loading(1, 50, 130.0, 125.0)).seconds == QUESTION
    assert choose([50, 100], constant_s=125, loading=Loading(1, 50, 130.0, 25.0)).seconds == QUESTION + 100


def test_documents_without_a_donor_are_computed():
    composing = choose([50, 100], [None, 100])
    assert composing is not None
    assert [donor is not None for donor in composing.donors] == [False, True]
    assert composing.reused == 80
    assert composing.exact(loaded=2) == [0, 1, 2]


def test_a_document_without_a_donor_behind_a_donated_one_is_composed_too_once_it_is_computed():
    composing = choose([100, 50, 100], [100, None, 100])
    assert composing is not None
    assert composing.reused == 80 + 80 - 10
    assert composing.exact(loaded=1) == [0, 2]


@pytest.mark.parametrize("costs", [{"load_s": 0.9}, {"move_s": 0.9}, {"load_s": 0.5, "move_s": 0.4}, {"share": 1.0}])
def test_what_takes_longer_to_move_than_to_compute_is_computed(costs):
    assert choose([50, 100], **costs) is None


def test_nothing_is_composed_without_donors():
    assert choose([50, 100], [None, None]) is None


def test_selecting_does_not_pay_for_a_short_document():
    assert choose([5]) is None
    assert choose([6]) is not None


@given(
    st.lists(st.tuples(st.integers(1, 500), st.booleans()), min_size=1, max_size=6),
    st.floats(0, 1),
    st.floats(0, 2),
    st.floats(0, 2),
)
def test_composing_is_never_expected_to_take_longer(documents, share, load_s, move_s):
    tokens = [count for count, _ in documents]
    composing = choose(tokens, [count if donated else None for count, donated in documents], share, load_s, move_s)
    if composing is not None:
        assert 0 < composing.reused <= sum(tokens)
        assert composing.seconds + sum(tokens) + QUESTION - composing.reused < sum(tokens) + QUESTION
