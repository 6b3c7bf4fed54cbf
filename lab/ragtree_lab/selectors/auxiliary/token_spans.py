"""Which characters of a text tokens stand for. By them, scores pass from one tokenizer's tokens to another's."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from tokenizers import Tokenizer

from generator.prompts.tokenizer import plain_tokenizer
from protocol.errors import ConfigError


class Span(NamedTuple):
    """Characters of a text, from ``start`` up to ``end``."""

    start: int
    end: int


class Spelled(NamedTuple):
    """A ``text``, its ``token_ids``, and the characters that each of them stands for."""

    text: str
    token_ids: list[int]
    spans: list[Span]


class TokenSpans:
    """The tokenizer of a model folder. Raises ConfigError if there is none that can be read."""

    def __init__(self, folder: Path) -> None:
        try:
            content = (folder / "tokenizer.json").read_bytes()
            self._tokenizer = Tokenizer.from_str(content.decode())
            # Texts are foreign: control tokens in them are plain characters, as in the prompt.
            self._plain_tokenizer = plain_tokenizer(content)
        except Exception as error:  # the library raises nothing more specific
            raise ConfigError(f"the tokenizer of {folder} cannot be read: {error}") from error
        self._plain_tokenizer.no_truncation()
        self._plain_tokenizer.no_padding()

    def of_text(self, text: str) -> Spelled:
        """A text in tokens."""
        encoded = self._plain_tokenizer.encode(text, add_special_tokens=False)
        return Spelled(text, encoded.ids, [Span(*offsets) for offsets in encoded.offsets])

    def of_tokens(self, token_ids: Sequence[int]) -> Spelled:
        """Tokens as a text, without control tokens."""
        ids = list(token_ids)
        text = self._tokenizer.decode(ids, skip_special_tokens=True)
        again = self.of_text(text)
        if again.token_ids == ids:
            return again
        # The text has another spelling in tokens, or control tokens were left out. Then it is spread evenly.
        return Spelled(text, ids, [Span(*_part(number, len(ids), len(text))) for number in range(len(ids))])


def highest_by_characters(scores: torch.Tensor, spans: Sequence[Span], onto: Sequence[Span]) -> torch.Tensor:
    """Scores of the tokens with ``onto``: the highest of those with ``spans`` that share a character with each."""
    of_character = torch.zeros(max([span.end for span in (*spans, *onto)], default=0))
    for span, score in zip(spans, scores.tolist(), strict=True):
        part = of_character[span.start : span.end]
        part.clamp_(min=score)
    return torch.tensor(
        [float(of_character[span.start : span.end].amax()) if span.start < span.end else 0.0 for span in onto]
    )


def _part(number: int, parts: int, length: int) -> tuple[int, int]:
    start = number * length // parts
    return start, max(start + 1, (number + 1) * length // parts)
