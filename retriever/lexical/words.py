"""How text is cut into the words that are indexed and searched."""

import re

from tantivy import Filter, TextAnalyzer, TextAnalyzerBuilder, Tokenizer

ANALYZER_VERSION = 1
"""An index with another version is built again. Raise it with every change to this file."""

_LONGEST_WORD = 64
"""In bytes. Longer ones are hashes or encoded data, and only make the index large."""

_UNSPACED = re.compile("[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff]+")
"""Runs of Chinese, Japanese and Korean characters."""


def analyzer() -> TextAnalyzer:
    """Split at everything but letters and digits, fold case and accents, and reduce English words to their stems."""
    return (
        TextAnalyzerBuilder(Tokenizer.simple())
        .filter(Filter.remove_long(_LONGEST_WORD))
        .filter(Filter.lowercase())
        .filter(Filter.ascii_fold())
        .filter(Filter.stemmer("english"))
        .build()
    )


def spaced(text: str) -> str:
    """Replace each run of characters that are written without spaces by its overlapping pairs, which are its words.

    Pairs need no dictionary, and find as well as real words do (Nie et al. 2000, "On the use of words and n-grams for
    Chinese information retrieval").
    """
    return _UNSPACED.sub(_pairs, text)


def _pairs(run: re.Match[str]) -> str:
    characters = run.group()
    pairs = [characters[at : at + 2] for at in range(max(1, len(characters) - 1))]
    return f" {' '.join(pairs)} "
