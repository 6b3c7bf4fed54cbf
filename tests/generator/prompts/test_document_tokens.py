"""The remembered token ids of documents."""

from concurrent.futures import ThreadPoolExecutor

from generator.prompts import document_tokens
from generator.prompts.document_tokens import DocumentTokens
from protocol.retrieval import Chunk


def document(text: str) -> Chunk:
    return Chunk("chunk", "document", "a.txt", 0, text, f"hash of {text}")


class Tokenizer:
    """One token for each character; records the texts."""

    def __init__(self) -> None:
        self.encoded: list[str] = []

    def encode(self, text: str) -> tuple[int, ...]:
        self.encoded.append(text)
        return tuple(map(ord, text))


def test_a_document_is_tokenised_once_for_each_owner():
    tokenizer = Tokenizer()
    tokens = DocumentTokens(tokenizer.encode)
    for owner in ("one", "one", "other", "one"):
        assert tokens.of(document("ab\U0001f469"), owner) == (97, 98, 128105)
    assert tokenizer.encoded == ["ab\U0001f469"] * 2


def test_documents_without_an_owner_are_not_remembered():
    tokenizer = Tokenizer()
    tokens = DocumentTokens(tokenizer.encode)
    assert tokens.of(document("a"), None) == tokens.of(document("a"), None) == tokens.of(document("a"), "one") == (97,)
    assert tokenizer.encoded == ["a"] * 3


def test_the_least_recently_used_documents_are_forgotten(monkeypatch):
    monkeypatch.setattr(document_tokens, "_REMEMBERED", 6)
    tokenizer = Tokenizer()
    tokens = DocumentTokens(tokenizer.encode)
    for text in ("aaa", "bbb", "aaa", "ccc", "aaa", "bbb", "longer than all", "bbb"):
        assert tokens.of(document(text), "one") == tuple(map(ord, text))
    assert tokenizer.encoded == ["aaa", "bbb", "ccc", "bbb", "longer than all"]


def test_threads_may_share_them(monkeypatch):
    monkeypatch.setattr(document_tokens, "_REMEMBERED", 40)
    tokens = DocumentTokens(Tokenizer().encode)
    texts = [f"text {number % 7}" for number in range(2000)]
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda text: tokens.of(document(text), "one"), texts))
    assert found == [tuple(map(ord, text)) for text in texts]
