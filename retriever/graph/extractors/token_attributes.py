"""Parts of speech of parsed texts, as the model's attribute ruler gives them."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from spacy.pipeline import AttributeRuler
from spacy.tokens import Doc

_MOST_WORDS = 100_000
"""This number of words takes 10 MiB. Forgotten words are looked up again."""


class _Context(NamedTuple):
    """What the ruler's answer for a token depends on. ``word`` is 0 if no pattern knows the word."""

    tag: int
    dependency: int
    word: int
    is_space: int
    behind_expletive: bool


class _Attributes(NamedTuple):
    part_of_speech: int
    morphology: int
    tag: int
    dependency: int
    lemma: int


class TokenAttributes:
    """Sets the attributes of a text's tokens as ``ruler`` does, and asks it only about tokens that it has not seen.

    The ruler matches each text with all of its patterns, which takes a quarter of the time that spaCy needs. They are
    patterns of single tokens: of tags, dependencies and closed classes of words. One pattern looks at the token before,
    too: "is" in "there is". So after a few texts, all answers are known.
    """

    def __init__(self, ruler: AttributeRuler) -> None:
        self._ruler = ruler
        self._strings = ruler.vocab.strings
        self._expletive = self._strings["expl"]
        self._known_words = _KnownWords(ruler.patterns)
        # By the number of a lower-case word: the same if a pattern knows it, else 0.
        self._words: dict[int, int] = {}
        self._learned: dict[_Context, _Attributes] = {}

    def __call__(self, doc: Doc) -> Doc:
        """Set the attributes of the tokens of ``doc``, which has tags and dependencies."""
        contexts = self._contexts(doc)
        attributes = [self._learned.get(context) for context in contexts]
        found = [each for each in attributes if each is not None]
        if len(found) < len(contexts):
            self._ruler(doc)
            for context, row in zip(contexts, _rows(doc, "POS", "MORPH", "TAG", "DEP", "LEMMA"), strict=True):
                self._learned[context] = _Attributes(*row)
            return doc
        doc.from_array(["POS", "MORPH"], np.array([each[:2] for each in found], np.uint64).reshape(-1, 2))
        for token, context, each in zip(doc, contexts, found, strict=True):
            # Few tokens: white space, and "got".
            if each.tag != context.tag:
                token.tag = each.tag
            if each.dependency != context.dependency:
                token.dep = each.dependency
            if each.lemma:
                token.lemma = each.lemma
        return doc

    def _contexts(self, doc: Doc) -> list[_Context]:
        contexts: list[_Context] = []
        before = 0
        if len(self._words) > _MOST_WORDS:
            self._words.clear()
        for tag, dependency, lower, is_space in _rows(doc, "TAG", "DEP", "LOWER", "IS_SPACE"):
            word = self._words.get(lower)
            if word is None:
                word = self._words[lower] = lower if self._strings[lower] in self._known_words else 0
            contexts.append(_Context(tag, dependency, word, is_space, before == self._expletive))
            before = dependency
        return contexts


class _KnownWords:
    """The words that patterns know, in lower case."""

    def __init__(self, patterns: Sequence[Mapping[str, Any]]) -> None:
        self._listed: set[str] = set()
        self._expressions: list[re.Pattern[str]] = []
        tokens = [token for rule in patterns for pattern in rule["patterns"] for token in pattern]
        for words in [token["LOWER"] for token in tokens if "LOWER" in token]:
            if isinstance(words, str):
                self._listed.add(words)
            elif "REGEX" in words:
                self._expressions.append(re.compile(words["REGEX"]))
            else:
                self._listed.update(*words.values())

    def __contains__(self, word: str) -> bool:
        return word in self._listed or any(expression.search(word) for expression in self._expressions)


def _rows(doc: Doc, *attributes: str) -> list[list[int]]:
    """These attributes of each token."""
    array: Any = doc.to_array(list(attributes))
    rows: list[list[int]] = array.reshape(-1, len(attributes)).tolist()
    return rows
