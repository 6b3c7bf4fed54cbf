"""The log probabilities of an answer's tokens, in the shape of OpenAI's chats."""

import msgspec

from protocol.generation import TokenLogprob

_LEAST = -9999.0
"""Stands for the logarithm of 0, which JSON has no number for."""


class LikelyToken(msgspec.Struct, frozen=True):
    """A token's text, its UTF-8 ``bytes``, and the natural logarithm of its probability."""

    token: str
    bytes: list[int]
    logprob: float


class ScoredToken(msgspec.Struct, frozen=True):
    """A token of an answer. ``top_logprobs`` are the most likely tokens in its place, best first."""

    token: str
    bytes: list[int]
    logprob: float
    top_logprobs: tuple[LikelyToken, ...]


def scored(token: TokenLogprob, alternatives: int) -> ScoredToken:
    """The token with this number of most likely ones in its place."""
    best = sorted(token.alternatives.items(), key=lambda item: item[1], reverse=True)[:alternatives]
    text = token.texts.get(token.token_id, "")
    return ScoredToken(
        text,
        list(text.encode("utf-8", "replace")),
        max(token.logprob, _LEAST),
        tuple(_likely(token.texts.get(token_id, ""), logprob) for token_id, logprob in best),
    )


def _likely(text: str, logprob: float) -> LikelyToken:
    return LikelyToken(text, list(text.encode("utf-8", "replace")), max(logprob, _LEAST))
