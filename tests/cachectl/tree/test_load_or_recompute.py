"""A cached prefix is loaded as far as that shortens the time to the first token, and recomputed from there."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachectl.nodes.node import Copy, Node
from cachectl.policies import create_policy
from cachectl.policies.lookahead import Lookahead
from cachectl.tiers.own_loads import OwnLoads
from cachectl.tiers.peer_links import PeerLinks
from cachectl.tiers.tier_cache import TierCache
from cachectl.tree.load_or_recompute import Loading, LoadOrRecompute, TreeCosts
from protocol.kv import Paging
from protocol.tiers import Tier

GPU, HOST, DISK = Tier
QUESTION = 5


def cache(tier: Tier, location: str = "", slower: TierCache | None = None) -> TierCache:
    instance = "one" if tier is GPU else None
    return TierCache(tier, 1, create_policy("LRU", Lookahead()), instance, location, slower)


CACHES = {DISK: cache(DISK)}
CACHES[HOST] = cache(HOST, slower=CACHES[DISK])
CACHES[GPU] = cache(GPU, slower=CACHES[HOST])
NO_LINKS = PeerLinks()


def copies(*tiers: Tier, tokens: int = 10, page_tokens: int = 1) -> list[Copy]:
    return [Copy(Node(b"", "document", tokens, None, Paging(page_tokens)), CACHES[tier], held=True) for tier in tiers]


def a_second_a_token(cached: int, new: int) -> float:
    return float(new)


def slow(host: float, disk: float):
    rates = {GPU: 0.0, HOST: host, DISK: disk}
    return lambda tokens, tier: tokens * rates[tier]


def choose(
    found: list[Copy], prompt_tokens: int, load_seconds, cost=a_second_a_token, links=NO_LINKS, loads=None
) -> Loading:
    rule = LoadOrRecompute(TreeCosts(cost, load_seconds), loads or OwnLoads(load_seconds), links)
    return rule.loading(found, prompt_tokens, CACHES[GPU])


def with_constants(load_seconds, constants: dict[Tier, float]) -> OwnLoads:
    """Loads that take so long besides their bytes, as many of them have shown."""
    loads = OwnLoads(load_seconds)
    for tier, seconds in constants.items():
        for _ in range(3):
            loads.measured("one", tier, 10, load_seconds(10, tier) + seconds)
    return loads


@pytest.mark.parametrize(
    ("host", "disk", "documents"),
    [(0.5, 0.5, 4), (0.5, 2.0, 3), (2.0, 0.5, 1), (2.0, 2.0, 1), (0.5, 1.0, 4), (1.4, 0.1, 4), (1.5, 0.1, 1)],
)
def test_documents_that_load_faster_than_they_compute_are_loaded(host, disk, documents):
    found = copies(GPU, HOST, HOST, DISK)
    if (host, disk) == (1.4, 0.1):
        # Loading from host memory alone does not pay. The disk copies behind it make up for that.
        found = copies(GPU, HOST, DISK, DISK)
    chosen = choose(found, 40 + QUESTION, slow(host, disk))
    assert (chosen.documents, chosen.tokens) == (documents, documents * 10)


def test_gpu_copies_cost_nothing_and_are_always_used():
    never = slow(9, 9)
    assert choose(copies(GPU, GPU, HOST), 30 + QUESTION, never) == Loading(2, 20, 0.0)
    assert choose(copies(GPU), 10, never) == Loading(1, 10, 0.0)
    assert choose(copies(HOST), 10 + QUESTION, never) == Loading(0, 0, 0.0)
    assert choose([], QUESTION, never) == Loading(0, 0, 0.0)


def test_without_load_costs_everything_is_loaded():
    assert choose(copies(GPU, HOST, DISK), 35, None) == Loading(3, 30, 0.0)


def test_whole_pages_are_loaded():
    found = copies(HOST, page_tokens=16)
    assert choose(found, 10 + QUESTION, slow(0.5, 0.5)) == Loading(1, 10, 8.0)
    assert choose(found, 10 + QUESTION, slow(0.7, 0.5)).documents == 0


def test_a_load_too_short_for_its_constant_is_computed():
    rates = slow(0.5, 0.5)
    loads = with_constants(rates, {HOST: 8.0, DISK: 3.0})
    assert choose(copies(HOST), 10 + QUESTION, rates, loads=loads).documents == 0
    # A load of several documents waits once.
    assert choose(copies(HOST, HOST), 20 + QUESTION, rates, loads=loads) == Loading(2, 20, 18.0, 8.0)
    # A load from several tiers waits for the slowest one.
    assert choose(copies(HOST, DISK), 20 + QUESTION, rates, loads=loads) == Loading(2, 20, 18.0, 8.0)
    assert choose(copies(DISK), 10 + QUESTION, rates, loads=loads) == Loading(1, 10, 8.0, 3.0)


@pytest.mark.parametrize(("tier", "slower_s"), [(HOST, 0.0), (DISK, 0.3)])
def test_what_lies_at_a_peer_is_loaded_if_reading_it_there_pays(tier, slower_s):
    far = [Copy(Node(b"", "document", 10, None), cache(tier, "elsewhere"), held=True)]
    rates = slow(0.5, 0.8)
    cheap, dear = PeerLinks(0.9 - slower_s), PeerLinks(1.1 - slower_s)
    # Reading a disk there is assumed to take as much longer as reading it here.
    load_s = cheap.seconds("one", "elsewhere", 10, HOST) + 10 * slower_s
    assert choose(far, 10 + QUESTION, rates, links=cheap) == Loading(1, 10, pytest.approx(load_s))
    assert choose(far, 10 + QUESTION, rates, links=dear).documents == 0


def test_the_question_counts_as_computed_tokens():
    # A pass costs as much as 20 tokens, so computing 10 more tokens with the question costs nothing.
    def flat(cached: int, new: int) -> float:
        return max(20.0, float(new)) if new else 0.0

    load_s = slow(0.1, 0.1)
    assert choose(copies(HOST), 10 + QUESTION, load_s, flat).documents == 0
    assert choose(copies(HOST), 10 + 30, load_s, flat).documents == 1
    assert choose(copies(HOST), 10, load_s, flat).documents == 1


@given(
    st.lists(st.sampled_from(list(Tier)), max_size=6).map(lambda tiers: sorted(tiers, key=list(Tier).index)),
    st.tuples(st.floats(0, 3), st.floats(0, 3)),
    st.integers(0, 30),
    st.floats(0, 20),
    st.tuples(st.floats(0, 20), st.floats(0, 20)),
)
def test_no_other_prefix_length_has_a_shorter_time_to_first_token(tiers, rates, question, launch_s, constants):
    def cost(cached: int, new: int) -> float:
        return launch_s + new * (1 + cached / 100) if new else 0.0

    copy_s = slow(*rates)
    loads = with_constants(copy_s, dict(zip((HOST, DISK), constants, strict=True)))
    found = copies(*tiers)
    total = 10 * len(tiers) + question

    def load_s(documents: int) -> float:
        loaded = tiers[:documents]
        return sum(copy_s(10, tier) for tier in loaded) + max(
            (loads.constant_s("one", tier) for tier in loaded), default=0.0
        )

    def seconds(documents: int) -> float:
        return load_s(documents) + cost(10 * documents, total - 10 * documents)

    chosen = choose(found, total, copy_s, cost, loads=loads)
    assert (
        seconds(chosen.documents) <= min(seconds(length) for length in range(tiers.count(GPU), len(tiers) + 1)) + 1e-9
    )
    assert chosen.seconds == pytest.approx(load_s(chosen.documents))
    assert chosen.documents >= tiers.count(GPU)
