"""Generated workloads repeat by seed, and have the configured popularity, lengths and rate."""

import math
import time
import tracemalloc
from collections import Counter
from itertools import islice, pairwise
from statistics import mean

import pytest

from protocol.errors import ConfigError
from ragtree_lab.workloads.synthetic import PATTERNS, DocumentLengths, SyntheticSettings, SyntheticWorkload


def workload(pattern="zipf", seed=0, **changes):
    return SyntheticWorkload(pattern, SyntheticSettings(**{"requests": 20_000, "documents": 500, **changes}), seed)


def first_documents(requests):
    return Counter(request.documents[0].id for request in requests)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_equal_seeds_give_equal_requests(pattern):
    one = list(workload(pattern, 1, requests=9000).requests())
    assert one == list(workload(pattern, 1, requests=9000).requests())
    assert one != list(workload(pattern, 2, requests=9000).requests())


@pytest.mark.parametrize("pattern", PATTERNS)
def test_shorter_workload_is_a_prefix_of_a_longer_one(pattern):
    longer = workload(pattern, requests=9000)
    assert list(workload(pattern, requests=5000).requests()) == list(islice(longer.requests(), 5000))


@pytest.mark.parametrize("alpha", [0.6, 1.0, 1.4])
def test_zipf_popularity_falls_with_its_exponent(alpha):
    counts = first_documents(workload(alpha=alpha, requests=100_000).requests())
    by_rank = [count for _, count in counts.most_common(30)]
    expected = [rank**-alpha for rank in range(1, 501)]
    for rank in (1, 2, 5, 10, 30):
        assert by_rank[rank - 1] / 100_000 == pytest.approx(expected[rank - 1] / sum(expected), rel=0.1)


def test_uniform_documents_are_equally_popular():
    counts = first_documents(workload("uniform", requests=100_000).requests())
    assert len(counts) == 500
    chi_squared = sum((count - 200) ** 2 / 200 for count in counts.values())
    # 499 degrees of freedom: within five standard deviations.
    assert abs(chi_squared - 499) < 5 * math.sqrt(2 * 499)


def test_temporal_popularity_drifts():
    requests = list(workload("temporal", drift=0.02).requests())
    early, late = first_documents(requests[:2000]), first_documents(requests[-2000:])
    popular_early = {id_ for id_, _ in early.most_common(20)}
    assert popular_early.isdisjoint(id_ for id_, _ in late.most_common(20))
    # The distribution stays skewed: at any time, a few documents have most of the requests.
    assert sum(count for _, count in late.most_common(60)) > 0.5 * 2000


def test_temporal_popularity_starts_at_its_peak_and_decays():
    requests = list(workload("temporal", drift=0.01, alpha=1.2).requests())
    newest = first_documents(requests[10_000:10_100]).most_common(1)[0][0]
    counts = [first_documents(requests[at : at + 1000])[newest] for at in (9000, 10_000, 11_000, 15_000)]
    assert counts[0] < 10 < counts[1] > counts[2] > counts[3]


def test_temporal_without_drift_is_zipf():
    chosen = [[r.documents[0].id[-7:] for r in workload(p, drift=0.0).requests()] for p in ("temporal", "zipf")]
    assert chosen[0] == chosen[1]


def test_document_usually_has_the_same_companions():
    seen = {}
    for request in workload(other_neighbours=0.1).requests():
        first, *companions = request.documents
        assert len({first, *companions}) == 5
        seen.setdefault(first, Counter())[tuple(companions)] += 1
    usual = sum(max(counts.values()) for counts in seen.values())
    assert usual / 20_000 == pytest.approx(0.9, abs=0.01)
    assert len(seen) == 500


@pytest.mark.parametrize(("documents", "top_k"), [(1, 1), (9, 1), (2, 2), (3, 2), (5, 5), (6, 5)])
def test_few_documents_make_a_workload(documents, top_k):
    for request in workload(documents=documents, top_k=top_k, requests=500).requests():
        assert len(set(request.documents)) == top_k


def test_document_has_one_length():
    lengths = {}
    for request in workload(requests=5000).requests():
        for document in request.documents:
            assert lengths.setdefault(document.id, document.tokens) == document.tokens


@pytest.mark.parametrize("asked", [50.0, 3718.0])
def test_mean_length_is_near_the_requested_one(asked):
    lengths = DocumentLengths(asked, seed=3)
    drawn = [lengths.of(f"document {number}") for number in range(50_000)]
    assert mean(drawn) == pytest.approx(asked, rel=0.02)
    assert asked / 20 < min(drawn) < asked / 5
    assert 5 * asked < max(drawn) < 9 * asked


def test_different_seeds_give_different_lengths():
    assert DocumentLengths(1000, 1).of("a") != DocumentLengths(1000, 2).of("a")


def test_shortest_document_has_one_token():
    assert min(DocumentLengths(1, 0).of(str(number)) for number in range(100)) == 1


def test_arrivals_are_poisson_at_the_requested_rate():
    times = [request.arrival_s for request in workload(rate=4.0).requests()]
    gaps = [later - earlier for earlier, later in pairwise(times)]
    assert min(gaps) >= 0
    assert mean(gaps) == pytest.approx(0.25, rel=0.03)
    # A share of 1/e of exponential gaps is longer than the mean.
    assert mean(gap > 0.25 for gap in gaps) == pytest.approx(1 / math.e, abs=0.02)


def test_questions_are_short_and_never_empty():
    tokens = [request.question_tokens for request in workload(question_tokens=2.0).requests()]
    assert min(tokens) == 1
    assert mean(tokens) == pytest.approx(2.0, abs=0.2)


def test_requests_are_generated_lazily():
    tracemalloc.start()
    try:
        began = time.perf_counter()
        assert len(list(islice(workload(requests=1_000_000).requests(), 10))) == 10
        assert time.perf_counter() - began < 5
        assert tracemalloc.get_traced_memory()[1] < 20_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "changes",
    [
        {"requests": 0},
        {"documents": 0},
        {"documents": 4},
        {"top_k": 0},
        {"rate": 0.0},
        {"rate": math.nan},
        {"mean_tokens": 0.5},
        {"mean_tokens": math.inf},
        {"question_tokens": 0.0},
        {"alpha": -0.1},
        {"alpha": math.nan},
        {"drift": -1.0},
        {"other_neighbours": 1.1},
    ],
)
def test_invalid_setting_is_refused_by_name(changes):
    with pytest.raises(ConfigError) as caught:
        SyntheticSettings(**changes)
    assert caught.value.param == next(iter(changes))
