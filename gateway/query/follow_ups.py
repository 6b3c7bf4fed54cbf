"""The last question of a conversation, how it is searched, and how the model is asked to rewrite it."""

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

from protocol.generation import Sampling
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


_INSTRUCTION = (
    "You rewrite the last question of a conversation, so that it can be understood without the conversation. Replace "
    "words such as it, they, one and there by what they stand for, and name the subject. Keep the meaning and the "
    "language of the question. Do not answer it. Write the rewritten question only, on one line."
)
_MOST_CHARACTERS = 1000
"""Of one earlier message: its beginning. A follow-up names things that were asked for, or that an answer began with."""

_SPEAKERS = {"user": "User", "assistant": "Assistant"}
_QUOTES = "\"'`\u201c\u201d\u2018\u2019\u00ab\u00bb"


def rewriting_prompt(messages: Sequence[ChatMessage], earlier: int) -> tuple[ChatMessage, ChatMessage]:
    """The conversation with the model about the last question and up to ``earlier`` ones before it, with the answers.

    The last message with text must be the user's, as ``last_question`` finds it.
    """
    turns = [message for message in messages if message.role in _SPEAKERS and message.content.strip()]
    asked = [place for place, message in enumerate(turns) if message.role == "user"]
    last = asked[-1]
    said = turns[asked[-1 - earlier] if earlier < len(asked) else 0 : last]
    lines = [f"{_SPEAKERS[turn.role]}: {turn.content.strip()[:_MOST_CHARACTERS]}" for turn in said]
    lines += ["", f"Last question: {turns[last].content.strip()}", "", "Rewritten question:"]
    return ChatMessage("system", _INSTRUCTION), ChatMessage("user", "\n".join(lines))


REWRITING = Sampling(max_tokens=64, stop=("\n",))
"""How the model generates the question: greedily, on one line. A longer one is discarded."""


def question_in(text: str) -> str:
    """The question that the model wrote, without quotation marks around it. Empty if it wrote none."""
    question = text.strip().strip(_QUOTES).strip()
    return question if any(character.isalnum() for character in question) else ""
