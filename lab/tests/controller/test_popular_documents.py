"""Popular documents follow Zipf's law without a table, and are the same for equal seeds."""

from collections import Counter
from itertools import pairwise

import pytest

from protocol.errors import ConfigError
from ragtree_lab.controller.popular_documents import NAMESPACE, Documents, PopularRequests, content
from ragtree_lab.workloads.popularity import PAPER_REQUESTS_SHARE, PAPER_TOP_SHARE


def test_the_default_law_is_as_skewed_as_the_papers():
    documents = Documents()
    assert documents.rank(PAPER_REQUESTS_SHARE) == pytest.approx(PAPER_TOP_SHARE * documents.count, rel=0.1)


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0, 1.5])
def test_ranks_rise_with_the_share_from_the_first_to_the_last(alpha):
    documents = Documents(1000, alpha=alpha)
    ranks = [documents.rank(step / 10_000) for step in range(10_000)]
    assert ranks == sorted(ranks)
    assert (ranks[0], documents.rank(1 - 1e-12)) == (0, 999)
    assert set(Counter(ranks)) <= set(range(1000))


def test_popularity_falls_with_the_rank_as_the_law_says():
    documents = Documents(1000, alpha=1.0)
    drawn = Counter(documents.rank((step + 0.5) / 1_000_000) for step in range(1_000_000))
    # The integral overstates the first few documents.
    for rank in (9, 99):
        assert drawn[rank] / drawn[2 * rank + 1] == pytest.approx(2.0, rel=0.05)


def test_requests_are_equal_for_equal_seeds_and_arrive_in_order():
    def requests(seed: int) -> list:
        return list(PopularRequests(Documents(1000), 200, 2.0, seed, begin_s=50.0).requests())

    drawn = requests(1)
    assert drawn == requests(1)
    assert drawn != requests(2)
    assert all(before.arrival_s < after.arrival_s for before, after in pairwise(drawn))
    assert drawn[0].arrival_s > 50
    assert drawn[-1].arrival_s - 50 == pytest.approx(100, rel=0.3)


@pytest.mark.parametrize("count", [6, 7, 1000])
def test_a_prompt_has_distinct_documents_and_mostly_the_same_neighbours(count):
    documents = Documents(count, tokens=100, system_tokens=7, question_tokens=5)
    behind: dict[str, Counter] = {}
    for request in PopularRequests(documents, 2000, 1.0, 0).requests():
        ids = [document.id for document in request.documents]
        assert len(set(ids)) == 3
        assert set(ids) <= {content(number) for number in range(count)}
        assert {document.tokens for document in request.documents} == {100}
        assert (request.system_id, request.system_tokens, request.question_tokens) == (NAMESPACE, 7, 5)
        behind.setdefault(ids[0], Counter())[tuple(ids[1:])] += 1
    most = sum(counted.most_common(1)[0][1] for counted in behind.values())
    assert 0.9 < most / 2000 < 1


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"count": 5}, "documents"),
        ({"tokens": 0}, "tokens"),
        ({"top_k": 0}, "top_k"),
        ({"alpha": -1.0}, "alpha"),
        ({"alpha": float("nan")}, "alpha"),
    ],
)
def test_impossible_documents_are_refused(changes, param):
    with pytest.raises(ConfigError) as raised:
        Documents(**changes)
    assert raised.value.param == param
