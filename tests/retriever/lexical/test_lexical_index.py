import errno
import random

import numpy as np
import pytest

from retriever.lexical.lexical_index import LexicalIndex


@pytest.fixture
def index(tmp_path):
    return LexicalIndex(tmp_path / "index")


def found(index, text, k=10, allowed=None):
    return index.search(text, k, None if allowed is None else np.array(allowed, np.int64)).ids.tolist()


def test_chunks_with_rarer_words_of_the_query_come_first(index):
    index.change([(1, "the sea and the wind"), (2, "the wind"), (3, "the lighthouse"), (4, "the sand")])
    assert found(index, "where is the lighthouse")[0] == 3
    assert sorted(found(index, "the wind")) == [1, 2, 3, 4]
    assert found(index, "volcano") == []


@pytest.mark.parametrize(
    ("text", "query"),
    [
        ("running dogs", "A dog runs"),
        ("CAFÉ société", "cafe societe"),
        ("error E-1234 in module", "e 1234"),
        ("在北京大学学习", "北京大学"),
        ("日本語の文章", "文章"),
        ("한국어 문장", "문장"),
        ("中", "中"),
    ],
)
def test_words_are_found_in_their_other_forms(index, text, query):
    index.change([(1, text), (2, "something else"), (3, "другое")])
    assert found(index, query) == [1]


@pytest.mark.parametrize("query", ["", "???", '+-&&||!(){}[]^"~*?:\\/', "AND OR NOT", "text:other", "\x00"])
def test_queries_are_words_and_no_syntax(index, query):
    index.change([(1, "other text")])
    assert found(index, query) in ([], [1])


def test_a_query_without_known_words_finds_nothing(index):
    assert found(index, "anything") == []
    index.change([(1, "text")])
    assert found(index, "anything") == []


def test_a_long_query_is_searched_by_its_rarest_words(index):
    index.change([(number, f"common w{number}") for number in range(500)])
    query = " ".join(["common", *(f"w{number}" for number in range(100))])
    assert set(found(index, query, k=100)) <= set(range(100))


def test_only_allowed_chunks_are_found(index):
    index.change([(number, f"word {'again ' * (number % 7)}") for number in range(5000)])
    everything = found(index, "again", k=5000)
    draws = random.Random(1)
    for count in (1, 100, 4000):
        allowed = sorted(draws.sample(range(5000), count))
        expected = [id_ for id_ in everything if id_ in set(allowed)]
        assert sorted(found(index, "again", k=5000, allowed=allowed)) == sorted(expected)
        assert len(found(index, "again", k=20, allowed=allowed)) == min(20, len(expected))


def test_changes_are_visible_and_last(index, tmp_path):
    index.change([(1, "one"), (2, "two")])
    index.change([(3, "three")], [2, 99])
    assert index.ids().tolist() == [1, 3]
    assert len(index.ids()) == 2
    assert found(index, "two") == []
    assert LexicalIndex(tmp_path / "index").ids().tolist() == [1, 3]


def test_a_change_that_fails_leaves_nothing(index):
    index.change([(1, "one")])
    with pytest.raises(TypeError):
        index.change([(2, "two"), (3, None)])
    index.change([(4, "four")])
    assert index.ids().tolist() == [1, 4]


def test_a_failing_disk_is_an_oserror(index, tmp_path, monkeypatch):
    class FullIndex:
        def writer(self, *_):
            raise ValueError("IO error: No space left on device (os error 28)")

    monkeypatch.setattr(index, "_index", FullIndex())
    with pytest.raises(OSError, match="not written") as raised:
        index.change([(1, "one")])
    assert raised.value.errno == errno.ENOSPC
