"""The last question of a conversation, and how it is searched."""

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

from protocol.prompts import ChatMessage

EARLIER_QUESTIONS = 1
"""Questions of a conversation that its last one is searched with, unless it is searched alone."""


class FollowUps(StrEnum):
    """What a follow-up is searched with.

    ``alone``: with itself. ``joined``: with the questions before it. ``rewritten``: with a question that the model
    makes of it and of what was said before; where that fails, as ``joined``.
    """

    ALONE = "alone"
    JOINED = "joined"
    REWRITTEN = "rewritten"


class LastQuestion(NamedTuple):
    """The last user message with text, and the ``context``: user messages before it, one to a line.

    ``follows``: there are any before it.
    """

    text: str
    context: str
    follows: bool


def last_question(messages: Sequence[ChatMessage], earlier: int, most_characters: int) -> LastQuestion | None:
    """The last question of a conversation, with up to ``earlier`` ones before it as its context.

    Earlier ones are left out, the oldest first, where the context would exceed ``most_characters``. Returns None if no
    user message has text.
    """
    asked = [message.content.strip() for message in messages if message.role == "user"]
    asked = [text for text in asked if text]
    if not asked:
        return None
    *before, last = asked
    context = ""
    for text in reversed(before[-earlier:] if earlier else []):
        longer = f"{text}\n{context}" if context else text
        if len(longer) > most_characters:
            break
        context = longer
    return LastQuestion(last, context, bool(before))
