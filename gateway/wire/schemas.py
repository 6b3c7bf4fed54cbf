"""The bodies of requests: what may stand in them and within which bounds.

Tenants and namespaces come with the key, never with a body; only an administrator may name another tenant.
"""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StrictBool, StrictStr, model_validator

from gateway.settings import GatewaySettings
from gateway.wire.filters import RequestFilter
from protocol.documents import DEFAULT_COLLECTION
from protocol.errors import QuestionTooLong
from protocol.plans import DocumentOrder
from protocol.prompts import ChatMessage
from protocol.retrieval import SearchRequest

COLLECTION = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$"
DOCUMENT_ID = r"^[^\x00-\x1f\x7f]{1,512}$"
MAX_TOKENS = 131_072
MAX_TOP_K = 100


def _whole_characters(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError("half a character: JSON can spell a lone surrogate, UTF-8 cannot") from error
    return text


Text = Annotated[str, AfterValidator(_whole_characters)]
CollectionName = Annotated[str, Field(pattern=COLLECTION)]
TenantName = Annotated[Text, Field(min_length=1, max_length=256)]
TopK = Annotated[int, Field(ge=1, le=MAX_TOP_K)]
MaxTokens = Annotated[int, Field(ge=1, le=MAX_TOKENS)]
Temperature = Annotated[float, Field(ge=0, le=2)]
TopP = Annotated[float, Field(gt=0, le=1)]
Seed = Annotated[int, Field(ge=-(2**53) + 1, le=2**53 - 1)]  # the integers that every JSON parser agrees on
AttributeMap = Annotated[
    dict[Annotated[str, Field(min_length=1, max_length=256)], StrictBool | float | StrictStr], Field(max_length=64)
]


class SearchBody(BaseModel):
    """What a request may say about the search for its documents."""

    collection: CollectionName | None = None
    filters: RequestFilter | None = None
    top_k: TopK | None = None

    def search(self, question: str, param: str, tenant: str, settings: GatewaySettings) -> SearchRequest:
        """The search for ``question``, which stood in the field ``param``. Raises QuestionTooLong."""
        limit = settings.max_query_chars
        if len(question) > limit:
            raise QuestionTooLong(f"The question has {len(question):,} characters; the limit is {limit:,}.", param)
        return SearchRequest(
            tenant=tenant,
            collection=self.collection or DEFAULT_COLLECTION,
            query=question,
            top_k=self.top_k or settings.default_top_k,
            filters=None if self.filters is None else self.filters.to_protocol(),
        )


class AnswerBody(SearchBody):
    """What a request may say about the prompt that is made of those documents."""

    document_order: DocumentOrder | None = None


Question = Annotated[Text, Field(min_length=1, pattern=r"\S")]


class QueryBody(AnswerBody):
    """A question to a collection. Without ``temperature`` the answer is greedy, so it can be had again."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)
    query: Question = Field(examples=["How do I read a file line by line?"])
    stream: bool = False
    max_tokens: MaxTokens | None = None
    temperature: Temperature = 0.0
    top_p: TopP = 1.0
    seed: Seed | None = None
    include: list[Literal["stages", "timeline"]] = Field(
        default=[],
        max_length=8,
        description="`stages`: an event for each stage of the search. `timeline`: in the reply, what the query went "
        "through, and when.",
    )


class TextPart(BaseModel):
    """A part of a message's content; the only kind that a text model reads."""

    type: Literal["text"]
    text: Text


class ChatTurn(BaseModel):
    """One message of a conversation."""

    role: Literal["system", "developer", "user", "assistant"]
    content: Text | list[TextPart] | None = None

    def to_protocol(self) -> ChatMessage:
        """The message as the prompt layout takes it; ``developer`` is OpenAI's newer word for ``system``."""
        role = "system" if self.role == "developer" else self.role
        if isinstance(self.content, list):
            return ChatMessage(role, "".join(part.text for part in self.content))
        return ChatMessage(role, self.content or "")


class StreamOptions(BaseModel):
    """What a streamed chat carries besides its text."""

    include_usage: bool = False


_HAS_TEXT = {"pattern": r"\S"}
_ASKS: dict[str, Any] = {
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
"""That a conversation holds a user message with text, for /docs; the route checks it."""


class ChatBody(AnswerBody):
    """OpenAI's chat request, with ``collection``, ``filters``, ``top_k`` and ``document_order`` beside it.

    Fields that it does not name are ignored, so that clients which send more work unchanged.
    """

    model_config = ConfigDict(extra="ignore", allow_inf_nan=False)
    model: str = Field(min_length=1)
    messages: list[ChatTurn] = Field(min_length=1, json_schema_extra=_ASKS)
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: MaxTokens | None = None
    max_completion_tokens: MaxTokens | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    seed: Seed | None = None
    stop: Text | Annotated[list[Text], Field(max_length=16)] | None = None
    n: Literal[1] | None = None


class WarmQuery(SearchBody):
    """A past query: a line of the query log, or of a log of the caller's own. ``time`` is seconds since the epoch.

    A string is a query that says no more.
    """

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)
    time: float | None = None
    tenant: TenantName | None = None
    query: Question

    @model_validator(mode="before")
    @classmethod
    def _plain(cls, given: object) -> object:
        return {"query": given} if isinstance(given, str) else given


class WarmBody(BaseModel):
    """Queries whose documents are to be in the cache, or ``log`` for those that the stack itself has noted.

    ``collection`` and ``tenant`` are those of the queries that name none.
    """

    model_config = ConfigDict(extra="forbid")
    queries: list[WarmQuery] = []
    collection: CollectionName | None = None
    tenant: TenantName | None = None
    log: bool = False

    @model_validator(mode="after")
    def _one_source(self) -> "WarmBody":
        if self.log == bool(self.queries):
            raise ValueError("give either queries or log")
        return self


class PinBody(BaseModel):
    """A document to keep in the cache whatever comes, or with ``pinned`` false no longer."""

    model_config = ConfigDict(extra="forbid")
    document_id: str = Field(pattern=DOCUMENT_ID)
    collection: CollectionName | None = None
    tenant: TenantName | None = None
    pinned: bool = True


class DocumentBody(BaseModel):
    """A document as JSON."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)
    text: Text
    filename: Text | None = Field(default=None, min_length=1, max_length=512)
    title: Text | None = Field(default=None, max_length=1024)
    attributes: AttributeMap = {}

    @classmethod
    def openapi(cls) -> dict[str, Any]:
        """The schema, for routes that read their body themselves."""
        return cls.model_json_schema()
