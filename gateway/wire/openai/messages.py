"""The messages of a conversation, as OpenAI's clients send them."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from gateway.wire.schemas import Text
from protocol.errors import InvalidRequest, UnsupportedParameter
from protocol.prompts import ChatMessage

_TOOL_FIELDS = ("tool_calls", "tool_call_id", "function_call", "audio")

_HAS_TEXT = {"pattern": r"\S"}
ASKS: dict[str, Any] = {
    "contains": {
        "required": ["role", "content"],
        "properties": {
            "role": {"const": "user"},
            "content": {
                "anyOf": [
                    {"type": "string", **_HAS_TEXT},
                    {"type": "array", "contains": {"properties": {"text": _HAS_TEXT}, "required": ["text"]}},
                ]
            },
        },
    }
}
"""Documents in /docs that a conversation needs a user message with text. The route checks it."""


class ContentPart(BaseModel):
    """A part of a message's content. Only parts with text are served."""

    type: Text = Field(examples=["text"])
    text: Text | None = None


class ChatTurn(BaseModel):
    """One message of a conversation. Tools are not served, so neither are their calls and results."""

    model_config = ConfigDict(extra="allow")
    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: Text | Annotated[list[ContentPart], Field(fail_fast=True)] | None = None

    def to_protocol(self, param: str, text_types: Sequence[str] = ("text",)) -> ChatMessage:
        """Convert to the prompt layout's message. ``developer`` is OpenAI's newer name of ``system``.

        ``param`` is the message's place in the request, ``text_types`` the types of parts that are text. Raises
        UnsupportedParameter for tools, images, audio and files, and InvalidRequest for a text part without text.
        """
        extra = self.model_extra or {}
        unserved = next((name for name in _TOOL_FIELDS if extra.get(name)), None)
        if self.role in ("tool", "function") or unserved is not None:
            raise UnsupportedParameter("RAGTree serves neither tools nor audio.", f"{param}.{unserved or 'role'}")
        return chat_message(self.role, self.content, param, text_types)


def chat_message(
    role: str, content: str | Sequence[ContentPart] | None, param: str, text_types: Sequence[str]
) -> ChatMessage:
    """The prompt layout's message. Raises as ``ChatTurn.to_protocol`` does for parts that are no text."""
    role = "system" if role == "developer" else role
    if content is None or isinstance(content, str):
        return ChatMessage(role, content or "")
    for number, part in enumerate(content):
        if part.type not in text_types:
            raise UnsupportedParameter(
                f"RAGTree serves text only, not parts of the type {part.type!r}.", f"{param}.content.{number}.type"
            )
        if part.text is None:
            raise InvalidRequest("A part with text needs its text.", f"{param}.content.{number}.text")
    return ChatMessage(role, "".join(part.text or "" for part in content))
