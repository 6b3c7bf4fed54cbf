"""What the model is asked in order to rewrite a follow-up into a question that stands alone, and what it answers."""

from collections.abc import Sequence

from protocol.generation import Sampling
from protocol.prompts import ChatMessage

_INSTRUCTION = (
    "You rewrite the last question of a conversation, so that it can be understood without the conversation. Replace "
    "words such as it, they, one and there by what they stand for, and name the subject. Keep the meaning and the "
    "language of the question. Do not answer it. Write the rewritten question only, on one line."
)
_MOST_CHARACTERS = 1000
"""Of one earlier message: its beginning. A follow-up names things that were asked for, or that an answer began with."""

_SPEAKERS = {"user": "User", "assistant": "Assistant"}
_MOST_TOKENS = 64
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


def rewriting_sampling() -> Sampling:
    """How the model generates the question: greedily, on one line. A longer one is discarded."""
    return Sampling(_MOST_TOKENS, stop=("\n",))


def question_in(text: str) -> str:
    """The question that the model wrote, without quotation marks around it. Empty if it wrote none."""
    question = text.strip().strip(_QUOTES).strip()
    return question if any(character.isalnum() for character in question) else ""
