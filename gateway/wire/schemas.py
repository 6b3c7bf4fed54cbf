"""Request bodies and the bounds of their fields.

The API key determines the tenant. Only administrators may name another tenant in a body.
"""

from collections.abc import Sized
from typing import Annotated, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    Field,
    StrictBool,
    StrictStr,
    model_validator,
)

from gateway.settings import GatewaySettings
from protocol import filters as protocol_filters
from protocol.documents import DEFAULT_COLLECTION, MOST_TRIPLETS
from protocol.errors import QuestionTooLong
from protocol.graph import ContextBudget, GraphMode
from protocol.plans import DocumentOrder, Reuse
from protocol.retrieval import SearchKind, SearchRequest

COLLECTION = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$"
DOCUMENT_ID = r"^[^\x00-\x1f\x7f]{1,512}$"


def _whole_characters(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError("contains a lone surrogate, which UTF-8 cannot encode") from error
    return text


Text = Annotated[str, AfterValidator(_whole_characters)]
CollectionName = Annotated[str, Field(pattern=COLLECTION)]
TenantName = Annotated[Text, Field(min_length=1, max_length=256)]
TopK = Annotated[int, Field(ge=1, le=100)]
MaxTokens = Annotated[int, Field(ge=1, le=131_072)]
Temperature = Annotated[float, Field(ge=0, le=2)]
TopP = Annotated[float, Field(gt=0, le=1)]
Seed = Annotated[int, Field(ge=-(2**53) + 1, le=2**53 - 1)]  # integers that all JSON parsers represent exactly


def at_most(count: int) -> BeforeValidator:
    """Refuse objects and lists with more entries before they are looked at.

    pydantic's own ``max_length`` counts them once all are validated, and describes every invalid one.
    """

    def few(given: object) -> object:
        if isinstance(given, Sized) and not isinstance(given, str) and len(given) > count:
            raise ValueError(f"has {len(given):,} entries; the limit is {count:,}")
        return given

    return BeforeValidator(few)


AttributeMap = Annotated[
    dict[Annotated[str, Field(min_length=1, max_length=256)], StrictBool | float | StrictStr],
    Field(max_length=64),
    at_most(64),
]

_FIELDS = 8
"""No filter has more fields."""

Value = StrictBool | float | Annotated[StrictStr, AfterValidator(_whole_characters)]


class ComparisonFilter(BaseModel, extra="forbid", allow_inf_nan=False):
    """Compares an attribute with a value."""

    key: str = Field(min_length=1, max_length=256)
    type: Literal["eq", "ne", "gt", "gte", "lt", "lte"]
    value: Value

    def to_protocol(self) -> protocol_filters.Filter:
        """Convert to the retriever's filter."""
        return protocol_filters.Comparison(self.key, self.type, self.value)


class MembershipFilter(BaseModel, extra="forbid", allow_inf_nan=False):
    """Compares an attribute with a list of values."""

    key: str = Field(min_length=1, max_length=256)
    type: Literal["in", "nin"]
    value: Annotated[list[Value], Field(fail_fast=True)] = Field(max_length=1000)

    def to_protocol(self) -> protocol_filters.Filter:
        """Convert to the retriever's filter."""
        return protocol_filters.Comparison(self.key, self.type, tuple(self.value))


class CompoundFilter(BaseModel, extra="forbid", allow_inf_nan=False):
    """Filters of which all (``and``) or at least one (``or``) must match."""

    type: Literal["and", "or"]
    filters: Annotated[list["RequestFilter"], Field(fail_fast=True)] = Field(min_length=1, max_length=100)

    def to_protocol(self) -> protocol_filters.Filter:
        """Convert to the retriever's filter."""
        return protocol_filters.Compound(self.type, tuple(inner.to_protocol() for inner in self.filters))


def as_requested(given: protocol_filters.Filter) -> dict[str, object]:
    """Convert the retriever's filter to the request's format, as JSON values."""
    if isinstance(given, protocol_filters.Compound):
        return {"type": given.op, "filters": [as_requested(inner) for inner in given.filters]}
    return {"key": given.key, "type": given.op, "value": given.value}


RequestFilter = Annotated[
    ComparisonFilter | MembershipFilter | CompoundFilter, Field(discriminator="type"), at_most(_FIELDS)
]
CompoundFilter.model_rebuild()

_Tokens = Annotated[int, Field(ge=0, le=1_000_000)]


class ContextFields(BaseModel):
    """How much of what a search found is in the prompt, in tokens of the model, and whether it is answered at all.

    The first two bound the facts of a graph, so they change nothing in mode ``naive``.
    """

    max_entity_tokens: _Tokens | None = Field(
        default=None, description="Most tokens of the facts about one entity of the question. 0: no facts."
    )
    max_relation_tokens: _Tokens | None = Field(
        default=None,
        description="Most tokens of all facts. 0: no facts. By default, a quarter of what the model's context leaves "
        "beside question and answer.",
    )
    max_total_tokens: Annotated[int, Field(ge=1, le=1_000_000)] | None = Field(
        default=None,
        description="Most tokens of the prompt: system prompt, documents, facts and conversation. Documents are left "
        "out from the end.",
    )
    only_need_context: StrictBool = Field(
        default=False, description="Whether the answer is the context that the model would read, instead of its words."
    )

    @property
    def budget(self) -> ContextBudget:
        """The bounds of the prompt's context."""
        return ContextBudget(self.max_entity_tokens, self.max_relation_tokens, self.max_total_tokens)


class SearchBody(BaseModel):
    """Fields of a request that control the search."""

    collection: CollectionName | None = None
    filters: RequestFilter | None = None
    top_k: TopK | None = None
    search: SearchKind | None = Field(
        default=None,
        description="`dense`: by the nearness of embeddings. `sparse`: by words. `hybrid`: by both. By default as the "
        "collection is set.",
    )
    rerank: StrictBool | None = Field(
        default=None, description="Whether a reranker orders the results. By default, if one is configured."
    )
    mode: GraphMode = Field(
        default=GraphMode.NAIVE,
        description="How the collection's graph is used. `naive`: not at all. `local`: from the entities that the "
        "question names. `global`: from the statements nearest to it. `hybrid`: from both. `mix`: from both, and from "
        "the chunks that a search without a graph finds.",
    )

    def to_search(
        self, question: str, param: str, tenant: str, settings: GatewaySettings, context: str = ""
    ) -> SearchRequest:
        """The search for ``question``, which is in the request's field ``param``, asked in this ``context``.

        Raises QuestionTooLong.
        """
        limit = settings.max_query_chars
        if len(question) > limit:
            raise QuestionTooLong(f"The question has {len(question):,} characters; the limit is {limit:,}.", param)
        return SearchRequest(
            tenant=tenant,
            collection=self.collection or DEFAULT_COLLECTION,
            query=question,
            top_k=self.top_k or settings.default_top_k,
            context=context,
            filters=None if self.filters is None else self.filters.to_protocol(),
            search=self.search,
            rerank=self.rerank,
            mode=self.mode,
        )


class AnswerBody(SearchBody, ContextFields):
    """Fields of a request that control the search, the prompt, and which KV it may use."""

    document_order: DocumentOrder | None = None
    reuse: Reuse | None = Field(
        default=None,
        description="`exact`: only KV that was computed after the same documents. `composed`: also KV that was "
        "computed after others, with a share of it computed again. `auto`: composed where that has passed its gate.",
    )
    recompute_share: Annotated[float, Field(ge=0, le=1)] | None = Field(
        default=None, description="The share of composed documents' tokens that is computed again."
    )


Question = Annotated[Text, Field(min_length=1, pattern=r"\S")]


class QueryBody(AnswerBody, extra="forbid", allow_inf_nan=False):
    """A question to a collection. Without ``temperature``, decoding is greedy and the answer is reproducible."""

    query: Question = Field(examples=["How do I read a file line by line?"])
    model: str | None = Field(
        None, min_length=1, description="The model that answers: the served one, or one of its adapters by name."
    )
    stream: bool = False
    max_tokens: MaxTokens | None = None
    temperature: Temperature = 0.0
    top_p: TopP = 1.0
    seed: Seed | None = None
    include: Annotated[list[Literal["stages", "timeline", "results.text", "logprobs"]], Field(fail_fast=True)] = Field(
        default=[],
        max_length=8,
        description="`stages`: an event for each stage of the search. `timeline`: the times of the query's phases, "
        "in the reply. `results.text`: the text of each result. `logprobs`: the log probabilities of the "
        "answer's tokens.",
    )


class FindBody(SearchBody, ContextFields, extra="forbid", allow_inf_nan=False):
    """A search of a collection: the body of a query without what generates the answer."""

    query: Question = Field(examples=["How do I read a file line by line?"])
    include: list[Literal["results.text"]] = Field(
        default=["results.text"], max_length=8, description="`results.text`: the text of each result."
    )


class WarmQuery(SearchBody, extra="forbid", allow_inf_nan=False):
    """A past query: a line of the query log or of the caller's own log. ``time`` is in seconds since the epoch.

    A string is a query without further fields.
    """

    time: float | None = None
    tenant: TenantName | None = None
    query: Question
    context: str = Field("", description="What was asked before in a conversation.")

    @model_validator(mode="before")
    @classmethod
    def _plain(cls, given: object) -> object:
        return {"query": given} if isinstance(given, str) else given


class WarmBody(BaseModel, extra="forbid"):
    """Queries to warm up the cache with, or ``log`` to use the stack's query log.

    ``collection`` and ``tenant`` apply to queries that name none.
    """

    queries: Annotated[list[WarmQuery], Field(fail_fast=True)] = []
    collection: CollectionName | None = None
    tenant: TenantName | None = None
    log: bool = False

    @model_validator(mode="after")
    def _one_source(self) -> "WarmBody":
        if self.log == bool(self.queries):
            raise ValueError("set either queries or log")
        return self


class PrecomputeBody(BaseModel, extra="forbid"):
    """What to compute ahead of time. Without ``collection``, all collections of the tenant."""

    collection: CollectionName | None = None
    tenant: TenantName | None = None
    top: Annotated[int, Field(ge=1, le=1_000_000)] | None = Field(
        default=None, description="First, this number of the most frequent sequences of documents in the query log."
    )
    donors: StrictBool = Field(
        default=True, description="Every chunk, after the first chunk of its document, as at ingestion."
    )

    @model_validator(mode="after")
    def _something(self) -> "PrecomputeBody":
        if self.top is None and not self.donors:
            raise ValueError("without donors, set top")
        return self


class CollectionBody(BaseModel, extra="forbid"):
    """The settings of a collection."""

    search: SearchKind | None = Field(
        default=None, description="How it is searched by default. null: as the stack is configured."
    )


class PinBody(BaseModel, extra="forbid"):
    """A document to pin in the cache or, with ``pinned: false``, to unpin."""

    document_id: str = Field(pattern=DOCUMENT_ID)
    collection: CollectionName | None = None
    tenant: TenantName | None = None
    pinned: bool = True


class AdapterBody(BaseModel, extra="forbid"):
    """Where an adapter comes from: an absolute folder that every machine has, or a Hugging Face id."""

    source: Annotated[Text, Field(min_length=1, max_length=4096)]


class TripletBody(BaseModel, extra="forbid"):
    """One relation between two entities, as a document states it."""

    head: Text
    relation: Text
    tail: Text


class DocumentBody(BaseModel, extra="forbid", allow_inf_nan=False):
    """A document as JSON."""

    text: Text
    filename: Text | None = Field(default=None, min_length=1, max_length=512)
    title: Text | None = Field(default=None, max_length=1024)
    attributes: AttributeMap = {}
    triplets: Annotated[list[TripletBody], Field(fail_fast=True)] = Field(
        default=[],
        max_length=MOST_TRIPLETS,
        description="What the document states, for the graph of its collection. Each part has at most 120 characters, "
        "and a letter or digit. Head and tail are different names.",
    )
