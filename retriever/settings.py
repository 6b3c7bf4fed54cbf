"""The retriever's configuration. Class variables are fixed: nobody who runs a retriever has to choose them."""

from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, Field, SecretStr, model_validator

from protocol.retrieval import SearchKind


class Pace(NamedTuple):
    """Times in seconds. Tests change them.

    - ``retry_first_s``: the first pause before a group that failed is ingested, or read into the graph, again. Each
      pause is twice the previous one, up to ``retry_max_s``.
    - ``group_documents``: the most documents that are ingested at once. ``group_bytes``: the largest size of a
      group, unless a single document is larger.
    """

    retry_first_s: float = 1.0
    retry_max_s: float = 60.0
    group_documents: int = 512
    group_bytes: int = 256 * 1024


class IndexTuning(NamedTuple):
    """Tests and benchmarks change them.

    - ``ivf_threshold``: with the kind auto, collections below this many vectors use flat.
    - ``retrain_growth``, ``retrain_imbalance``: ivf is rebuilt when it has grown or shrunk by the first factor, or when
      its lists are more uneven by the second.
    - ``removed_share``: rebuild when a larger share has been removed from hnsw, or removed or added on disk.
    - ``lists``: those of an ivf index; None: ``4 * sqrt(vectors)``. ``min_probes``: the least that a search reads.
    - ``links``: neighbours of a vector on each level of hnsw; the lowest level has twice as many. ``build_beam``:
      candidates for the neighbours of a new vector.
    - ``stages``: the most of a search. ``stage_ms``: the shortest expected time of one, in milliseconds. A search below
      two of them has one stage. Stages cost a few percent of a search, and give its first candidates much earlier.
    """

    ivf_threshold: int = 4096
    retrain_growth: float = 2.0
    retrain_imbalance: float = 2.0
    removed_share: float = 0.2
    lists: int | None = None
    min_probes: int = 32
    links: int = 32
    build_beam: int = 100
    stages: int = 16
    stage_ms: float = 3.0


class _Settings(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class SentenceTransformerSettings(_Settings):
    """A sentence-transformers model that runs in this process."""

    kind: Literal["sentence-transformers"] = Field("sentence-transformers", description="Run a model in this process.")
    model: str | None = Field(None, description="Model folder or Hugging Face id; default: the bundled MiniLM.")
    revision: str | None = Field(None, description="Revision of the model on the hub.")
    device: str = Field("cpu", description="Device that runs the model.")
    dtype: Literal["auto", "float32", "bfloat16", "int8"] = Field(
        "auto",
        description="Type of the weights. int8 is the fastest on a CPU. auto: int8 on a CPU if the model allows it.",
    )
    max_sequence: int = Field(512, gt=2, description="Longest text in tokens, special tokens included.")
    batch_tokens: int = Field(1024, gt=0, description="Tokens embedded at once, padding included. Raise it for a GPU.")

    @model_validator(mode="after")
    def _int8_on_a_cpu(self) -> Self:
        if self.dtype == "int8" and self.device != "cpu":
            raise ValueError("dtype int8 needs device cpu")
        return self


class OpenAISettings(_Settings):
    """An endpoint that serves OpenAI's embeddings API."""

    kind: Literal["openai"] = Field("openai", description="Use an OpenAI-compatible endpoint.")
    model: str = Field(description="Name of the model at the endpoint.")
    base_url: str | None = Field(None, description="URL of the endpoint; default: OpenAI's own.")
    api_key: SecretStr | None = Field(None, description="API key; default: the variable OPENAI_API_KEY.")
    dimensions: int | None = Field(
        None, gt=0, description="Length of the vectors to request; default: the model's own."
    )
    max_tokens: int = Field(8191, gt=0, description="Longest text in tokens.")
    tokenizer: str | None = Field(
        None,
        description="tokenizer.json or Hugging Face id that chunks are measured with; default: count words.",
    )
    batch_size: int = Field(64, gt=0, description="Texts per request.")
    timeout_s: float = Field(30.0, gt=0, description="Timeout of a request in seconds.")
    max_retries: ClassVar[int] = 3
    """How often a failed request is repeated."""


class HashingSettings(_Settings):
    """The embedder without a model: words hashed into buckets. For tests and trials."""

    kind: Literal["hashing"] = Field("hashing", description="Hash words, without a model. For tests and trials.")
    dimension: ClassVar[int] = 256
    """Length of a vector."""
    max_tokens: int = Field(510, gt=0, description="Longest text in tokens.")


EmbedderSettings = Annotated[
    SentenceTransformerSettings | OpenAISettings | HashingSettings, Field(discriminator="kind")
]


class ChunkSettings(_Settings):
    """How documents are cut. Sizes are in the embedder's tokens."""

    size: int = Field(512, gt=0, description="Longest chunk in tokens; the embedder's limit also applies.")
    overlap: int = Field(64, ge=0, description="Tokens that a chunk repeats from the previous one.")


class HNSWSettings(_Settings):
    """The beam width of an HNSW index's searches."""

    beam: int = Field(128, gt=0, description="Candidates that a search keeps. More raise recall and latency.")


class IndexSettings(_Settings):
    """The kind of a collection's index, and how much of it a search reads.

    ``probe_share`` looks high, but questions need it to find paragraphs. On SQuAD's 20,958 paragraphs with MiniLM, a
    share of 0.1 loses 2 points of recall@5 against exact search, 0.2 loses 0.75, and 0.4 or 0.5 lose 0.2 to 0.4, which
    is within the noise of 2,000 questions.
    """

    kind: Literal["auto", "flat", "ivf", "hnsw"] = Field(
        "auto", description="flat is exact. auto is flat for small collections and ivf for others."
    )
    on_disk_bytes: int = Field(
        4 * 1024**3, gt=0, description="An ivf index whose vectors take more bytes is memory-mapped from disk."
    )
    probe_share: float = Field(0.5, gt=0, le=1, description="Share of the ivf lists that a search reads.")
    hnsw: HNSWSettings = Field(HNSWSettings(), description="Searches of the graph, with kind hnsw.")
    tuning: ClassVar[IndexTuning] = IndexTuning()


class NoRerankerSettings(_Settings):
    """No reranker."""

    kind: Literal["none"] = Field("none", description="Do not rerank.")


class RerankStageSettings(_Settings):
    """What is reranked, and how long a search waits for it."""

    candidates: int = Field(30, gt=0, le=1000, description="Chunks that are reranked, if more than top_k.")
    timeout_s: float = Field(
        1.0, gt=0, description="Longest wait for the reranker in seconds. Then the results are not reranked."
    )
    pause_s: ClassVar[float] = 5.0
    """How long the reranker is not asked after it did not answer, in seconds."""


class EndpointRerankerSettings(RerankStageSettings):
    """A rerank endpoint over HTTP."""

    kind: Literal["endpoint"] = Field("endpoint", description="Use a rerank endpoint.")
    url: str = Field(pattern=r"^https?://", description="Full URL of the endpoint, such as http://host:8080/rerank.")
    shape: Literal["cohere", "tei"] = Field(
        description="cohere: as Cohere, Jina and vLLM have it. tei: as Text Embeddings Inference has it."
    )
    model: str | None = Field(None, description="Name of the model at the endpoint, with the shape cohere.")
    api_key: SecretStr | None = Field(None, description="API key, sent as a bearer token.")


class CrossEncoderSettings(RerankStageSettings):
    """A sentence-transformers cross-encoder that runs in this process."""

    kind: Literal["cross-encoder"] = Field("cross-encoder", description="Run a model in this process.")
    model: str = Field(description="Model folder or Hugging Face id.")
    revision: str | None = Field(None, description="Revision of the model on the hub.")
    device: str = Field("cpu", description="Device that runs the model.")
    dtype: Literal["float32", "bfloat16"] = Field("float32", description="Type of the weights.")
    max_sequence: int = Field(512, gt=2, description="Longest query and text in tokens. The rest is cut off.")


RerankerSettings = Annotated[
    NoRerankerSettings | EndpointRerankerSettings | CrossEncoderSettings, Field(discriminator="kind")
]


class LlmSettings(_Settings):
    """A language model that reads chunks for the graph, behind an endpoint that serves OpenAI's chats."""

    base_url: str = Field(pattern=r"^https?://", description="URL of the endpoint, such as http://host:8000/v1.")
    model: str = Field(description="Name of the model at the endpoint.")
    api_key: SecretStr | None = Field(None, description="API key, sent as a bearer token.")
    timeout_s: float = Field(60.0, gt=0, description="Timeout of a request in seconds.")
    max_retries: ClassVar[int] = 3
    """How often a failed request is repeated."""
    concurrency: int = Field(4, gt=0, description="Requests at once.")
    max_tokens: int = Field(1024, gt=0, description="Longest answer in tokens. Of a longer one, its beginning is read.")
    structured: bool = Field(True, description="Whether answers have to follow a JSON schema, by response_format.")
    extra_body: dict[str, Any] = Field({}, description="Fields to add to each request, such as those of vLLM.")


class GraphSettings(_Settings):
    """Whether collections have a graph, and what reads it from their documents."""

    kind: Literal["none", "given", "rules", "llm"] = Field(
        "none",
        description="none: no graph. given: the triplets that come with documents, which other kinds have, too. "
        "rules: names, noun phrases and verbs, by spaCy's small English model. "
        "llm: what the language model of llm writes.",
    )
    llm: LlmSettings | None = Field(None, description="The language model of kind llm, behind an endpoint.")
    entities: int = Field(10, ge=1, le=100, description="Entities of a question that its paths begin at.")
    hops: int = Field(2, ge=1, le=4, description="Most relations of a path.")
    paths: int = Field(
        30, ge=0, le=1000, description="Paths of a search: those nearest to the question, over all of its entities."
    )

    @model_validator(mode="after")
    def _llm_with_its_endpoint(self) -> Self:
        if self.kind == "llm" and self.llm is None:
            raise ValueError("a graph of kind llm needs an endpoint: set llm.base_url and llm.model")
        return self


class IngestSettings(_Settings):
    """How much ingestion keeps."""

    max_queued_documents: int = Field(
        100_000, gt=0, description="Largest number of queued documents. While it is reached, uploads are refused."
    )
    job_retention_s: float = Field(7 * 86400.0, gt=0, description="How long finished jobs are kept.")


class LoaderSettings(_Settings):
    """The resources that reading one document may use. A document that needs more is refused."""

    cpu_s: int = Field(30, gt=0, description="Processor time for reading one document, except plain text.")
    memory_mib: int = Field(2048, ge=512, description="Memory for reading one document, except plain text.")


class ShardSettings(_Settings):
    """How many retrievers share the documents, and how a search treats a lost shard."""

    count: int = Field(1, gt=0, description="Number of shards. Fixed once the data folder has documents.")
    timeout_s: float = Field(3.0, gt=0, description="A shard whose search takes longer counts as lost.")
    on_lost: Literal["error", "partial"] = Field(
        "error",
        description="If a shard is lost: error fails the search; partial uses the other shards and marks the answer.",
    )


class RetrieverSettings(_Settings):
    """All settings of a retriever, except its data folder."""

    embedder: EmbedderSettings = Field(SentenceTransformerSettings(), description="The embedder.")
    chunks: ChunkSettings = Field(ChunkSettings(), description="How documents are cut into chunks.")
    search: SearchKind = Field(
        SearchKind.HYBRID,
        description="How collections are searched that are not set otherwise. dense: by embeddings; sparse: by words; "
        "hybrid: by both.",
    )
    index: IndexSettings = Field(IndexSettings(), description="How vectors are searched.")
    reranker: RerankerSettings = Field(NoRerankerSettings(), description="What reranks the results of searches.")
    graph: GraphSettings = Field(GraphSettings(), description="The graph of a collection, for searches by mode.")
    ingest: IngestSettings = Field(IngestSettings(), description="How documents are ingested.")
    loaders: LoaderSettings = Field(LoaderSettings(), description="Limits for reading a document.")
    shards: ShardSettings = Field(ShardSettings(), description="How documents are distributed over several retrievers.")
    max_database_bytes: int | None = Field(
        None, gt=0, description="Largest size of the database file. At the limit, uploads fail as on a full disk."
    )
    pace: ClassVar[Pace] = Pace()

    @model_validator(mode="after")
    def _graph_in_one_shard(self) -> Self:
        if self.graph.kind != "none" and self.shards.count > 1:
            raise ValueError("a graph needs all documents in one shard: set shards.count to 1 or graph.kind to none")
        return self
