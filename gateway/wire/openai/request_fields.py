"""What the bodies of several of OpenAI's endpoints have in common: parameters, sampling, formats and messages.

A request that sets a parameter which RAGTree does not serve is refused, because its answer would not be what the caller
asked for. Values that change no answer are accepted, since OpenAI's clients send some by default.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

import msgspec
from pydantic import AfterValidator, BaseModel, Field

from gateway.query.follow_ups import FollowUps
from gateway.wire.schemas import AnswerBody, Seed, Temperature, Text, TopP, at_most
from protocol.errors import InvalidRequest, UnsupportedParameter
from protocol.generation import Sampling
from protocol.prompts import ChatMessage

_LABELS = frozenset(
    {
        "metadata",
        "parallel_tool_calls",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "safety_identifier",
        "user",
    }
)
"""Parameters that change no answer, whatever their value."""

_WITHOUT_EFFECT: Mapping[str, tuple[Any, ...]] = {
    "background": (False,),
    "best_of": (1,),
    "echo": (False,),
    "function_call": ("auto", "none"),
    "functions": ([],),
    "include": ([],),
    "modalities": (["text"],),
    "n": (1,),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "stream_options": ({}, {"include_obfuscation": False}),
    "suffix": ("",),
    "tool_choice": ("auto", "none"),
    "tools": ([],),
    "truncation": ("disabled",),
    "verbosity": ("medium",),
}
"""Values that ask for nothing, by parameter. So does null, for all parameters."""


class OpenAIBody(BaseModel, extra="allow", allow_inf_nan=False):
    """A request of an OpenAI client. Parameters that it does not declare are kept, to be refused by name."""

    def refuse_unserved(self) -> None:
        """Raise UnsupportedParameter for a parameter that is not served, unless its value asks for nothing."""
        for name, value in (self.model_extra or {}).items():
            if value is not None and name not in _LABELS and value not in _WITHOUT_EFFECT.get(name, ()):
                raise UnsupportedParameter(f"RAGTree does not serve {name!r} here; leave it out.", name)


class StreamOptions(BaseModel):
    """Options of a stream."""

    include_usage: bool = False


class ChoiceFields(BaseModel):
    """How many answers the reply has, whether it is streamed, and whether the stream ends with its usage."""

    n: Annotated[int, Field(ge=1, le=16)] | None = Field(
        default=None, description="Number of answers, from the same documents. Above 1, it needs a `temperature`."
    )
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    @property
    def choices(self) -> int:
        """The number of answers, 1 by default."""
        return self.n or 1

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with a chunk of the usage."""
        return self.stream_options is not None and self.stream_options.include_usage


class ConversationFields(BaseModel):
    """How the last question of a conversation is searched."""

    follow_ups: FollowUps | None = Field(
        default=None,
        description="`alone`: a question that follows another is searched as it is. `joined`: together with those "
        "before it. `rewritten`: as a question that the model makes of them.",
    )


TopLogprobs = Annotated[int, Field(ge=0, le=20)]
TokenIds = Annotated[list[int], Field(fail_fast=True)]
TokenLists = Annotated[list[TokenIds], Field(fail_fast=True)]
_Penalty = Annotated[float, Field(ge=-2, le=2)]
_StopString = Annotated[Text, Field(min_length=1)]
_TokenId = Annotated[str, Field(pattern=r"^[0-9]{1,7}$")]
_Bias = Annotated[float, Field(ge=-100, le=100)]


class SamplingFields(BaseModel):
    """OpenAI's sampling parameters, and those of vLLM beside them. Without ``temperature``, decoding is greedy."""

    temperature: Temperature | None = None
    top_p: TopP | None = None
    sampling_top_k: Annotated[int, Field(ge=0, le=1_000_000)] | None = Field(
        default=None, description="Sample among this number of most likely tokens. `top_k` is the number of chunks."
    )
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    frequency_penalty: _Penalty | None = None
    presence_penalty: _Penalty | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=10)] | None = None
    logit_bias: Annotated[dict[_TokenId, _Bias], Field(max_length=1024), at_most(1024)] | None = None
    seed: Seed | None = None
    stop: _StopString | Annotated[list[_StopString], Field(fail_fast=True, max_length=16)] | None = None

    def to_sampling(self, max_tokens: int, json_schema: str | None, top_logprobs: int | None) -> Sampling:
        """The sampling of an answer. ``top_logprobs`` is the number of alternatives; None for no log probabilities."""
        return Sampling(
            max_tokens=max_tokens,
            temperature=self.temperature or 0.0,
            top_p=1.0 if self.top_p is None else self.top_p,
            top_k=self.sampling_top_k or 0,
            min_p=self.min_p or 0.0,
            frequency_penalty=self.frequency_penalty,
            presence_penalty=self.presence_penalty or 0.0,
            repetition_penalty=1.0 if self.repetition_penalty is None else self.repetition_penalty,
            logit_bias={int(token_id): bias for token_id, bias in (self.logit_bias or {}).items()},
            seed=self.seed,
            stop=(self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ()),
            json_schema=json_schema,
            logprobs=top_logprobs is not None,
            alternatives=top_logprobs or 0,
        )


def _encodable(schema: dict[str, Any]) -> dict[str, Any]:
    try:
        msgspec.json.encode(schema)
    except (RecursionError, UnicodeEncodeError) as error:
        raise ValueError(f"is not a JSON schema that can be passed on: {error}") from error
    return schema


Schema = Annotated[dict[str, Any], AfterValidator(_encodable)]


class PlainText(BaseModel):
    """Any text."""

    type: Literal["text"]

    def to_json_schema(self) -> None:
        """No schema."""


class JsonObject(BaseModel):
    """Any JSON object."""

    type: Literal["json_object"]

    def to_json_schema(self) -> str:
        """The schema of any object, as JSON."""
        return '{"type":"object"}'


class NamedSchema(BaseModel):
    """A JSON schema. Answers always follow it, also if it is not ``strict``."""

    name: Text = ""
    description: Text | None = None
    json_schema: Schema = Field(alias="schema")
    strict: bool | None = None

    def to_json_schema(self) -> str:
        """The schema as JSON."""
        return msgspec.json.encode(self.json_schema).decode()


class JsonSchema(BaseModel):
    """JSON that follows a schema, as chats name it."""

    type: Literal["json_schema"]
    json_schema: NamedSchema

    def to_json_schema(self) -> str:
        """The schema as JSON."""
        return self.json_schema.to_json_schema()


ResponseFormat = Annotated[PlainText | JsonObject | JsonSchema, Field(discriminator="type")]


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


class ChatTurn(BaseModel, extra="allow"):
    """One message of a conversation. Tools are not served, so neither are their calls and results."""

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


class ModelBody(OpenAIBody, AnswerBody, SamplingFields):
    """A request that a model answers.

    ``question_field`` and ``schema_field`` are its names of what holds the question and the answer's JSON schema.
    """

    question_field: ClassVar[str]
    schema_field: ClassVar[str] = "json_schema"
    model: str = Field(min_length=1)

    @abstractmethod
    def sampling(self, default_max_tokens: int) -> Sampling:
        """The sampling of the answer. Raises InvalidRequest."""
