"""Exact match and F1 on examples computed by hand, and their properties for all texts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from examine.evaluation.scores import exact_match, f1, holds_answer, normalised, rouge_l

# Words that normalising changes, and plain letters, so that texts often share words.
words = st.lists(st.sampled_from(["a", "An", "THE", "theme", "red", "Red!", "fox", "'", "--", "1972", "ß", "\u00a0"]))
texts = words.map(" ".join) | st.text(max_size=20)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("  The Eiffel  Tower.\n", "eiffel tower"),
        ("An apple a day", "apple day"),
        # An article is a whole word. Punctuation is removed before articles.
        ("theatre, Anna", "theatre anna"),
        ("'the' U.S.A.", "usa"),
        ("twenty-one", "twentyone"),
        # Only ASCII punctuation is removed.
        ("1939-1945; 1939\u20131945", "19391945 1939\u20131945"),
        ("the", ""),
    ],
)
def test_normalized_text(text, expected):
    assert normalised(text) == expected


@pytest.mark.parametrize(
    ("answer", "right", "exact", "expected"),
    [
        ("the Eiffel Tower", ["Eiffel tower."], True, 1.0),
        # Two common words of three and two.
        ("big Eiffel tower", ["the Eiffel Tower"], False, 4 / 5),
        # One common word of four and one.
        ("It is in Paris.", ["Paris"], False, 2 / 5),
        # A repeated word counts as often as both texts have it: one of three and one.
        ("no no no", ["no"], False, 2 / 4),
        ("blue", ["red"], False, 0.0),
        # The best alternative counts: one common word of two and two, or of one and two.
        ("Marie Curie", ["Pierre Curie", "Curie", "Bohr"], False, 2 / 3),
        ("order does not matter", ["matter not does order"], False, 1.0),
        ("", ["something"], False, 0.0),
        ("The", ["something"], False, 0.0),
        ("something", ["the"], False, 0.0),
        ("the", ["a"], True, 1.0),
        ("anything", [], False, 0.0),
    ],
)
def test_worked_examples(answer, right, exact, expected):
    assert exact_match(answer, right) is exact
    assert f1(answer, right) == pytest.approx(expected, abs=1e-12)


@given(texts, st.lists(texts, max_size=4))
def test_f1_lies_between_0_and_1_and_is_1_for_an_exact_match(answer, right):
    score = f1(answer, right)
    assert 0 <= score <= 1
    if exact_match(answer, right):
        assert score == 1


@given(texts, texts)
def test_f1_is_symmetric(one, other):
    assert f1(one, [other]) == f1(other, [one])


@given(texts, texts, st.randoms(use_true_random=False))
def test_f1_ignores_the_order_of_words(answer, right, random):
    shuffled = normalised(answer).split()
    random.shuffle(shuffled)
    assert f1(" ".join(shuffled), [right]) == f1(normalised(answer), [right])


@given(texts, st.lists(texts, min_size=1, max_size=4))
def test_the_best_alternative_counts(answer, right):
    assert f1(answer, right) == max(f1(answer, [one]) for one in right)


@given(texts)
def test_normalized_text_has_only_words(text):
    compared = normalised(text)
    assert compared == " ".join(compared.split())
    assert not set(compared.split()) & {"a", "an", "the"}


@pytest.mark.parametrize(
    ("right", "holds"),
    [
        (["Wilhelm Conrad Röntgen"], True),
        (["1905", "1901"], True),
        (["a prize in"], True),
        # A missing word, a part of a word, and words with others between them.
        (["Wilhelm Röntgen"], False),
        (["Germ"], False),
        (["the"], False),
        ([""], False),
        ([], False),
    ],
)
def test_answer_is_found_in_a_text_by_whole_words(right, holds):
    text = "The prize, in 1901, went to Wilhelm Conrad Röntgen of Germany."
    assert holds_answer(text, right) is holds


@pytest.mark.parametrize(
    ("answer", "right", "expected"),
    [
        ("the Eiffel Tower", ["Eiffel tower."], 1.0),
        # Two of three and two words in sequence, with one between them.
        ("Eiffel old tower", ["Eiffel Tower"], 4 / 5),
        # The same words in another sequence: one of two and two.
        ("tower Eiffel", ["Eiffel Tower"], 1 / 2),
        # The example of the paper (Lin, 2004, section 3.1) without its articles.
        ("police kill gunman", ["police killed gunman"], 2 / 3),
        ("gunman kill police", ["police killed gunman"], 1 / 3),
        ("red fox", ["blue", "red", "red hen"], 2 / 3),
        ("", [""], 1.0),
        ("", ["red"], 0.0),
        ("red", [], 0.0),
    ],
)
def test_rouge_l(answer, right, expected):
    assert rouge_l(answer, right) == pytest.approx(expected)


@given(texts, texts)
def test_rouge_l_is_symmetric_and_at_most_f1(answer, right):
    assert rouge_l(answer, [right]) == rouge_l(right, [answer])
    assert 0 <= rouge_l(answer, [right]) <= f1(answer, [right])


@given(texts)
def test_rouge_l_of_a_right_answer_is_1(answer):
    assert rouge_l(answer, [answer]) == 1
