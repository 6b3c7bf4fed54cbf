from hypothesis import given
from hypothesis import strategies as st

from protocol.retrieval import SearchKind
from retriever.search.fusion import Hit, depth, ranked

WANTED = 5
RANKINGS = st.lists(st.integers(0, 30), unique=True, max_size=10).map(
    lambda keys: {key: 1.0 - place / 20 for place, key in enumerate(keys)}
)


@given(dense=RANKINGS, sparse=RANKINGS)
def test_fused_hits_are_those_of_both_rankings_by_their_scores(dense, sparse):
    fused = ranked(SearchKind.HYBRID, dense, sparse, WANTED)
    assert set(fused) == {*dense, *sparse}
    scores = [hit.score for hit in fused.values()]
    assert scores == sorted(scores, reverse=True)
    assert all((hit.dense, hit.sparse) == (dense.get(key), sparse.get(key)) for key, hit in fused.items())


@given(dense=RANKINGS, sparse=RANKINGS, scale=st.floats(0.01, 100.0))
def test_the_scale_of_bm25_does_not_matter(dense, sparse, scale):
    scaled = {key: score * scale for key, score in sparse.items()}
    fused, again = ranked(SearchKind.HYBRID, dense, sparse, WANTED), ranked(SearchKind.HYBRID, dense, scaled, WANTED)
    assert [round(hit.score, 6) for hit in fused.values()] == [round(hit.score, 6) for hit in again.values()]


@given(dense=RANKINGS)
def test_a_single_ranking_keeps_its_order_and_its_scores(dense):
    assert list(ranked(SearchKind.HYBRID, dense, {}, WANTED)) == list(dense)
    assert list(ranked(SearchKind.HYBRID, {}, dense, WANTED)) == list(dense)
    assert ranked(SearchKind.DENSE, dense, {}, WANTED) == {key: Hit(score, score, None) for key, score in dense.items()}
    assert ranked(SearchKind.SPARSE, {}, dense, WANTED) == {
        key: Hit(score, None, score) for key, score in dense.items()
    }


def test_what_both_rankings_have_beats_what_one_has():
    fused = ranked(SearchKind.HYBRID, {"a": 0.9, "b": 0.8, "d": 0.1}, {"c": 20.0, "b": 18.0, "e": 1.0}, WANTED)
    assert next(iter(fused)) == "b"


def test_a_ranking_that_tells_nothing_apart_decides_little():
    alike = {f"d{number}": 0.7 - number / 10_000 for number in range(20)}
    assert next(iter(ranked(SearchKind.HYBRID, alike, {"word": 9.0, "d0": 3.0}, WANTED))) == "word"


def test_what_has_none_of_the_words_scores_nothing_there():
    (only, other) = ranked(SearchKind.HYBRID, {"other": 0.3, "only": 0.2}, {"only": 4.0}, WANTED)
    assert (only, other) == ("only", "other")
    assert ranked(SearchKind.HYBRID, {"other": 0.3}, {"only": 4.0}, 1)["other"].score > 1.0


def test_only_hybrid_searches_need_more_than_the_results():
    assert depth(SearchKind.DENSE, 5) == depth(SearchKind.SPARSE, 5) == 5
    assert depth(SearchKind.HYBRID, 5) > 5
    assert depth(SearchKind.HYBRID, 100) > 100
