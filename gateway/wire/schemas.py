"""Request bodies and the bounds of their fields.

The API key determines the tenant. Only administrators may name another tenant in a body.
"""

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StrictBool, StrictStr, model_validator

from gateway.settings import GatewaySettings
from gateway.wire.context_fields import ContextFields
from gateway.wire.entries import at_most
from gateway.wire.filters import RequestFilter
from protocol.documents import DEFAULT_COLLECTION, MOST_TRIPLETS
from protocol.errors import QuestionTooLong
from protocol.graph import GraphMode
from protocol.plans import DocumentOrder, Reuse
from protocol.retrieval import SearchKind, SearchRequest

COLLECTION = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$"
DOCUMENT_ID = r"^[^\x00-\x1f\x7f]{1,512}$"
MAX_TOKENS = 131_072
MAX_TOP_K = 100
MAX_SEQUENCES = 1_000_000


def _whole_characters(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError("contains a lone surrogate, which UTF-8 cannot encode") from error
    return text


Text = Annotated[str, AfterValidator(_whole_characters)]
CollectionName = Annotated[str, Field(pattern=COLLECTION)]
TenantName = Annotated[Text, Field(min_length=1, max_length=256)]
TopK = Annotated[int, Field(ge=1, le=MAX_TOP_K)]
MaxTokens = Annotated[int, Field(ge=1, le=MAX_TOKENS)]
Temperature = Annotated[float, Field(ge=0, le=2)]
TopP = Annotated[float, Field(gt=0, le=1)]
Seed = Annotated[int, Field(ge=-(2**53) + 1, le=2**53 - 1)]  # integers that all JSON parsers represent exactly
RecomputeShare = Annotated[float, Field(ge=0, le=1)]
AttributeMap = Annotated[
    dict[Annotated[str, Field(min_length=1, max_length=256)], StrictBool | float | StrictStr],
    Field(max_length=64),
    at_most(64),
]


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
        description="`exact`: only KV that was computed behind the same documents. `composed`: also KV that was "
        "computed behind others, with a share of it computed again. `auto`: composed where that has passed its gate.",
    )
    recompute_share: RecomputeShare | None = Field(
        default=None, description="The share of composed documents' tokens that is computed again."
    )


Question = Annotated[Text, Field(min_length=1, pattern=r"\S")]


class QueryBody(AnswerBody):
    """A question to a collection. Without ``temperature``, decoding is greedy and the answer is reproducible."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)
    query: Question = Field(examples=["How do I read a file line by line?"])
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


class WarmQuery(SearchBody):
    """A past query: a line of the query log or of the caller's own log. ``time`` is in seconds since the epoch.

    A string is a query without further fields.
    """

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)
    time: float | None = None
    tenant: TenantName | None = None
    query: Question
    context: str = Field("", description="What was asked before in a conversation.")

    @model_validator(mode="before")
    @classmethod
    def _plain(cls, given: object) -> object:
        return {"query": given} if isinstance(given, str) else given


class WarmBody(BaseModel):
    """Queries to warm up the cache with, or ``log`` to use the stack's query log.

    ``collection`` and ``tenant`` apply to queries that name none.
    """

    model_config = ConfigDict(extra="forbid")
    queries: Annotated[list[WarmQuery], Field(fail_fast=True)] = []
    collection: CollectionName | None = None
    tenant: TenantName | None = None
    log: bool = False

    @model_validator(mode="after")
    def _one_source(self) -> "WarmBody":
        if self.log == bool(self.queries):
            raise ValueError("set either queries or log")
        return self


class PrecomputeBody(BaseModel):
    """What to compute ahead of time. Without ``collection``, all collections of the tenant."""

    model_config = ConfigDict(extra="forbid")
    collection: CollectionName | None = None
    tenant: TenantName | None = None
    top: Annotated[int, Field(ge=1, le=MAX_SEQUENCES)] | None = Field(
        default=None, description="First, this number of the most frequent sequences of documents in the query log."
    )
    donors: StrictBool = Field(
        default=True, description="Every chunk, behind the first chunk of its document, as after ingestion."
    )

    @model_validator(mode="after")
    def _something(self) -> "PrecomputeBody":
        if self.top is None and not self.donors:
            raise ValueError("without donors, set top")
        return self


class CollectionBody(BaseModel):
    """The settings of a collection."""

    model_config = ConfigDict(extra="forbid")
    search: SearchKind | None = Field(
        default=None, description="How it is searched by default. null: as the stack is configured."
    )


class PinBody(BaseModel):
    """A document to pin in the cache or, with ``pinned: false``, to unpin."""

    model_config = ConfigDict(extra="forbid")
    document_id: str = Field(pattern=DOCUMENT_ID)
    collection: CollectionName | None = None
    tenant: TenantName | None = None
    pinned: bool = True


class TripletBody(BaseModel):
    """One relation between two entities, as a document states it."""

    model_config = ConfigDict(extra="forbid")
    head: Text
    relation: Text
    tail: Text


class DocumentBody(BaseModel):
    """A document as JSON."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)
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
