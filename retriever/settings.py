"""The retriever's part of the configuration, one model a concern."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr

_FIXED = ConfigDict(extra="forbid", frozen=True)


class SentenceTransformerSettings(BaseModel):
    """A model that the sentence-transformers library runs in this process."""

    model_config = _FIXED

    kind: Literal["sentence-transformers"] = Field("sentence-transformers", description="Run a model in this process.")
    model: str | None = Field(None, description="A model folder or a Hugging Face id; by default the shipped MiniLM.")
    revision: str | None = Field(None, description="The model's revision on the hub.")
    device: str = Field("cpu", description="Where the model runs.")
    dtype: Literal["auto", "float32", "bfloat16"] = Field(
        "auto", description="auto: bfloat16 where the processor multiplies it in hardware, float32 elsewhere."
    )
    max_sequence: int = Field(512, gt=2, description="Tokens, special ones included, that a text may have.")
    batch_tokens: int = Field(512, gt=0, description="Tokens, padding included, embedded together; a GPU likes more.")


class OpenAISettings(BaseModel):
    """An endpoint that speaks OpenAI's embeddings API."""

    model_config = _FIXED

    kind: Literal["openai"] = Field("openai", description="Ask an OpenAI-compatible endpoint.")
    model: str = Field(description="The endpoint's name of the model.")
    base_url: str | None = Field(None, description="The endpoint; by default OpenAI's own.")
    api_key: SecretStr | None = Field(None, description="The endpoint's key; by default OPENAI_API_KEY.")
    dimensions: int | None = Field(None, gt=0, description="Ask for vectors this short.")
    max_tokens: int = Field(8191, gt=0, description="Tokens of a text that the model sees.")
    tokenizer: str | None = Field(
        None,
        description="The tokenizer.json or Hugging Face id that chunks are cut by; by default they are cut by words.",
    )
    batch_size: int = Field(64, gt=0, description="Texts of one request.")
    timeout_s: float = Field(30.0, gt=0, description="How long a request may take.")
    max_retries: int = Field(3, ge=0, description="How often a failed request is tried again.")


class HashingSettings(BaseModel):
    """The embedder without a model: hashed words in buckets. A fake, for tests and trials."""

    model_config = _FIXED

    kind: Literal["hashing"] = Field("hashing", description="A fake without a model: hashed words.")
    dimension: int = Field(256, gt=0, description="Buckets.")
    max_tokens: int = Field(510, gt=0, description="Tokens of a text that it sees.")


EmbedderSettings = Annotated[
    SentenceTransformerSettings | OpenAISettings | HashingSettings, Field(discriminator="kind")
]


class ChunkSettings(BaseModel):
    """How documents are cut, in tokens of the embedder."""

    model_config = _FIXED

    size: int = Field(512, gt=0, description="Longest chunk; bounded by what the embedder can see.")
    overlap: int = Field(64, ge=0, description="Tokens that a chunk repeats of the one before.")


class HNSWSettings(BaseModel):
    """How the graph of an HNSW index is built, and how wide the beam is that a search goes through it with."""

    model_config = _FIXED

    links: int = Field(32, gt=1, description="Neighbours of a vector on every level but the lowest, which has twice.")
    build_beam: int = Field(100, gt=0, description="Candidates among which a new vector's neighbours are chosen.")
    beam: int = Field(128, gt=0, description="Candidates that a search keeps: more find more, and take longer.")


class IndexSettings(BaseModel):
    """When a collection's index becomes an inverted file, of about ``4 * sqrt(n)`` lists, and how a search reads it.

    A search in stages takes a few percent longer than one in a single stage, and tells much sooner what it may come to.

    The share of lists looks high, and is what questions need to find paragraphs: on SQuAD's 20,958 paragraphs under
    MiniLM a share of 0.1 loses 2 points of recall@5 against exact search, 0.2 loses 0.75, 0.4 and 0.5 lose
    0.2 to 0.4, which is within what 2,000 questions can tell apart.
    """

    model_config = _FIXED

    kind: Literal["auto", "flat", "ivf", "hnsw"] = Field(
        "auto", description="flat is exact; auto is that for small collections and an inverted file for others."
    )
    ivf_threshold: int = Field(4096, gt=0, description="With auto, a collection of fewer vectors is searched exactly.")
    retrain_growth: float = Field(2.0, gt=1, description="Train anew when the index is larger or smaller by this.")
    retrain_imbalance: float = Field(2.0, gt=1, description="Train anew when its lists are so much more uneven.")
    removed_share: float = Field(
        0.2, gt=0, description="Build anew when more of a graph is removed, or of an index on disk removed or added."
    )
    on_disk_bytes: int = Field(
        4 * 1024**3, gt=0, description="An inverted file whose vectors have more bytes is mapped into memory from disk."
    )
    probe_share: float = Field(0.5, gt=0, le=1, description="Share of the lists that a search reads.")
    min_probes: int = Field(32, gt=0, description="Fewest lists that a search reads.")
    hnsw: HNSWSettings = Field(HNSWSettings(), description="The graph, where one is asked for.")
    lists: int | None = Field(None, gt=0, description="Lists of an inverted file; by default 4 * sqrt(vectors).")
    stages: int = Field(16, gt=0, description="Most stages of a search.")
    stage_ms: float = Field(
        3.0, gt=0, description="A stage is expected to take at least so long; a search below two of them has one stage."
    )


class IngestSettings(BaseModel):
    """How the ingest worker groups its work: a group is committed whole, and searches run beside it."""

    model_config = _FIXED

    group_documents: int = Field(64, gt=0, description="Most documents of a group.")
    group_bytes: int = Field(256 * 1024, gt=0, description="Most bytes of a group, unless one document has more.")
    retry_first_s: float = Field(1.0, gt=0, description="Wait before a failed group is tried again.")
    retry_max_s: float = Field(60.0, gt=0, description="Longest such wait; they double.")
    max_queued_documents: int = Field(
        100_000, gt=0, description="Documents that may wait to go in; while more do, uploads are refused."
    )
    job_retention_s: float = Field(7 * 86400.0, gt=0, description="How long ended jobs are remembered.")


class LoaderSettings(BaseModel):
    """What reading one uploaded document may take; one that takes more is refused."""

    model_config = _FIXED

    cpu_s: int = Field(30, gt=0, description="Processor time to read a document of HTML or PDF.")
    memory_mib: int = Field(2048, ge=512, description="Memory to read a document of HTML or PDF.")


class ShardSettings(BaseModel):
    """Over how many retrievers the documents are spread, and what becomes of a search that not all of them answer."""

    model_config = _FIXED

    count: int = Field(1, gt=0, description="Retrievers that keep a shard each; fixed once a data folder is filled.")
    timeout_s: float = Field(3.0, gt=0, description="A shard whose search takes longer than this is given up.")
    on_lost: Literal["error", "partial"] = Field(
        "error",
        description="Where a shard is lost or too slow: error fails the search; partial goes on with what the others "
        "find, and marks the answer.",
    )


class RetrieverSettings(BaseModel):
    """Everything a retriever is built from, but the folder that it owns."""

    model_config = _FIXED

    embedder: EmbedderSettings = Field(SentenceTransformerSettings(), description="What turns text into vectors.")
    chunks: ChunkSettings = Field(ChunkSettings(), description="How documents are cut.")
    index: IndexSettings = Field(IndexSettings(), description="How vectors are searched.")
    ingest: IngestSettings = Field(IngestSettings(), description="How documents are taken in.")
    loaders: LoaderSettings = Field(LoaderSettings(), description="What reading a document may take.")
    shards: ShardSettings = Field(ShardSettings(), description="How documents are spread over several retrievers.")
    search_threads: int = Field(4, gt=0, description="Searches that run side by side.")
    max_database_bytes: int | None = Field(
        None, gt=0, description="Bound of the database file; what would exceed it is refused as on a full disk."
    )
