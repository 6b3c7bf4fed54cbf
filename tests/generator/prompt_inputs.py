"""Documents and messages to lay out prompts from."""

from blake3 import blake3

from protocol.prompts import ChatMessage
from protocol.retrieval import Chunk


def document(text: str, number: int = 0) -> Chunk:
    """A retrieved document with this text, the ``number``-th of its source."""
    return Chunk(f"c{number}", "d", "d.txt", number, text, blake3(text.encode()).hexdigest())


def user(text: str) -> ChatMessage:
    """A message of the user."""
    return ChatMessage("user", text)
