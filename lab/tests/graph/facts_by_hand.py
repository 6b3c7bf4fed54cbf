"""Facts whose tokens can be counted by hand: a word is one token."""

from protocol.graph import Path, Source
from ragtree_lab.graph.facts import Facts
from ragtree_lab.graph.policies.forest import Forest


def words(text: str) -> tuple[int, ...]:
    """Tokenise: each word is a token, the same wherever it stands."""
    return tuple(int.from_bytes(word.encode()) for word in text.split())


def path(text: str) -> Path:
    """The path that reads like this, entities and relations in turn, each one word."""
    parts = text.split()
    relations = tuple(parts[1::2])
    return Path(tuple(parts[0::2]), relations, tuple(Source("doc", 0, "hash") for _ in relations), 1.0)


def facts(*paths: str, question: str = "who ?") -> Facts:
    """A question with these paths."""
    return Facts(question, ["nobody"], [path(text) for text in paths])


def forest(*paths: str) -> Forest:
    """The trees of these paths."""
    return Forest(facts(*paths), words)


def one_second_a_token(cached: int, new: int) -> float:
    """What a prefill costs."""
    return float(new)
