"""Triplets in the answer of a language model, also in one that breaks off, as a graph may have them."""

import json
import re
from collections.abc import Iterable
from typing import Any, NamedTuple

from protocol.graph import Triplet
from retriever.graph.names import LONGEST_NAME, name_key, tidy

_LIST = re.compile(r'"triplets"\s*:\s*\[')
_BARE_LIST = re.compile(r"\s*(?:```\w*\s*)?\[")
_THOUGHTS = re.compile(r"\s*<think>.*?(?:</think>|\Z)", re.DOTALL)
_SPACE = re.compile(r"\s*")
# Models write line breaks into strings as they are.
_DECODER = json.JSONDecoder(strict=False)

_MOST_TRIPLETS = 64
"""Of one chunk, the first ones. A model that repeats itself must not fill the graph."""

_NO_TEXT = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
"""Control characters and halves of a character. JSON can spell both, but the store cannot keep the latter."""


class Answer(NamedTuple):
    """The triplets of an answer, and whether its list of them ``begins`` and is ``whole``.

    A list that has something, but no triplet, is not whole.
    """

    triplets: tuple[Triplet, ...] = ()
    begins: bool = False
    whole: bool = False


def read_answer(text: str) -> Answer:
    """Read an answer: the list ``triplets`` of an object, or a list alone, each perhaps in other text.

    Of a list that breaks off, the triplets before the break are read. Other parts of a list than triplets are left out.
    """
    if thoughts := _THOUGHTS.match(text):
        text = text[thoughts.end() :]
    begin = _LIST.search(text) or _BARE_LIST.match(text)
    if begin is None:
        return Answer()
    items, ended = _items(text, begin.end())
    triplets = tuple(triplet for item in items if (triplet := _triplet(item)) is not None)
    return Answer(triplets, begins=True, whole=ended and (bool(triplets) or not items))


def _items(text: str, at: int) -> tuple[list[Any], bool]:
    """The items of a list whose bracket is before ``at``, up to where it ends or breaks, and whether it ends."""
    items: list[Any] = []
    while not text.startswith("]", at := _behind_space(text, at)):
        try:
            item, at = _DECODER.raw_decode(text, at)
        except (ValueError, RecursionError):
            return items, False
        items.append(item)
        at = _behind_space(text, at)
        if text.startswith(",", at):
            at += 1
        elif not text.startswith("]", at):
            return items, False
    return items, True


def _behind_space(text: str, at: int) -> int:
    space = _SPACE.match(text, at)
    assert space is not None
    return space.end()


def _triplet(item: object) -> Triplet | None:
    if not isinstance(item, dict):
        return None
    match item.get("head"), item.get("relation"), item.get("tail"):
        case str(head), str(relation), str(tail):
            return Triplet(head, relation, tail)
    return None


def tidied(triplets: Iterable[Triplet]) -> list[Triplet]:
    """Return the triplets with tidy names, each once. One of a thing with itself is left out, or without a name."""
    kept: dict[tuple[str, str, str], Triplet] = {}
    for triplet in (Triplet(*map(tidy, given)) for given in triplets):
        if _is_fact(triplet):
            key = name_key(triplet.head), triplet.relation.casefold(), name_key(triplet.tail)
            kept.setdefault(key, triplet)
    return list(kept.values())[:_MOST_TRIPLETS]


def _is_fact(triplet: Triplet) -> bool:
    if any(len(part) > LONGEST_NAME or _NO_TEXT.search(part) for part in triplet):
        return False
    head, tail = name_key(triplet.head), name_key(triplet.tail)
    return bool(head and tail and triplet.relation) and head != tail
