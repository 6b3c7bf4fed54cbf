"""Triplets in the answer of a language model, also in one that breaks off."""

import json
import re
from typing import Any, NamedTuple

from protocol.graph import Triplet

_LIST = re.compile(r'"triplets"\s*:\s*\[')
_BARE_LIST = re.compile(r"\s*(?:```\w*\s*)?\[")
_THOUGHTS = re.compile(r"\s*<think>.*?(?:</think>|\Z)", re.DOTALL)
_SPACE = re.compile(r"\s*")
# Models write line breaks into strings as they are.
_DECODER = json.JSONDecoder(strict=False)


class Answer(NamedTuple):
    """The triplets of an answer, and whether its list of them ``begins`` and is ``whole``.

    A list that has something, but no triplet, is not whole.
    """

    triplets: tuple[Triplet, ...] = ()
    begins: bool = False
    whole: bool = False


def read_answer(text: str) -> Answer:
    """Read an answer: the list ``triplets`` of an object, or a list alone, each perhaps in other text.

    Of a list that breaks off, the triplets before the break are read. What is no triplet in a list is left out.
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
