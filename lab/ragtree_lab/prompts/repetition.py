"""How much an answer repeats itself."""

_WORDS = 4
LOOPS_FROM = 0.5
"""An answer loops if at least this share of its 4-grams repeats."""


def repeated_share(text: str) -> float:
    """Return the share of the text's 4-grams of words that occurred before, from 0 to below 1: seq-rep-4.

    It is one minus the different 4-grams over all 4-grams (Welleck et al., 2020, section 6.1), and 0 for a text that
    has none.
    """
    words = text.split()
    grams = [tuple(words[start : start + _WORDS]) for start in range(len(words) - _WORDS + 1)]
    return 1 - len(set(grams)) / len(grams) if grams else 0.0
