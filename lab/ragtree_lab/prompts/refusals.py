"""Whether an answer says that it has no answer."""

import re

_REFUSAL = re.compile(
    r"""
      \b(?:i|we)\s+(?:do\s+not|don't|cannot|can\s+not|can't|could\s+not|couldn't|am\s+unable\s+to|am\s+not\s+able\s+to)
        \s+(?:really\s+)?(?:know|answer|find|determine|say|provide|tell)\b
    | \b(?:i\s+am|i'm)\s+not\s+(?:sure|aware|certain)\b
    | \bno\s+(?:information|mention|answer|details?)\b
    | \b(?:unable\s+to\s+answer|insufficient\s+information|not\s+enough\s+information)\b
    | \b(?:documents?|texts?|passages?|context|it|they|there)\s+(?:provided\s+|given\s+|above\s+)?
        (?:do|does|did)(?:\s+not|n't)\s+
        (?:explicitly\s+|directly\s+|specifically\s+)?
        (?:say|state|mention|hold|contain|provide|specify|give|include|answer|tell|indicate|have)\b
    | \b(?:is|are|was|were)(?:\s+not|n't)\s+(?:explicitly\s+|directly\s+|specifically\s+)?
        (?:mentioned|stated|specified|provided|given|answered|known|available|included|in\s+the\s+documents?)\b
    | ^\W*(?:unknown|unanswerable|not\s+(?:specified|stated|mentioned|provided|known))\b
    """,
    re.IGNORECASE | re.VERBOSE,
)
_OPENING_SENTENCES = 2
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+")


def refuses(answer: str) -> bool:
    """Return whether an English answer begins by saying that it is not known or not in the documents.

    Only the first two sentences count: an answer that gives what it has, and then says what it lacks, is none. It is a
    match of words, so it misses unusual phrases.
    """
    opening = _SENTENCE_END.split(answer.strip().replace("\u2019", "'"))[:_OPENING_SENTENCES]
    return _REFUSAL.search(" ".join(opening)) is not None
