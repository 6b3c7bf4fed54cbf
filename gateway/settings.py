"""The gateway's part of the configuration: limits, timeouts, keys and the defaults of requests."""

from typing import Annotated, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SecretStr, model_validator

from protocol.plans import DocumentOrder

MIB = 1024 * 1024


def _no_mask(secret: SecretStr) -> SecretStr:
    if not secret.get_secret_value().strip("*"):
        raise ValueError("this is how `ragtree config show` masks a key, not a key")
    return secret


Secret = Annotated[SecretStr, AfterValidator(_no_mask)]


class Limits(BaseModel):
    """What one key may do. A limit that is None is off; each minute is the last one, wherever it began."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    requests_per_minute: int | None = Field(None, gt=0, description="Requests of any kind.")
    tokens_per_minute: int | None = Field(
        None, gt=0, description="Tokens of prompts and answers, cached ones included, as queries have used them."
    )
    concurrent_queries: int | None = Field(None, gt=0, description="Queries under way at once, at each gateway.")
    documents_per_minute: int | None = Field(None, gt=0, description="Documents sent, each line of a batch being one.")
    upload_bytes_per_minute: int | None = Field(None, gt=0, description="Bytes of documents and batches sent.")
    concurrent_uploads: int | None = Field(None, gt=0, description="Uploads under way at once, at each gateway.")

    def overridden_by(self, others: "Limits") -> "Limits":
        """These limits, but those that ``others`` say, None included."""
        return self.model_copy(update={name: getattr(others, name) for name in others.model_fields_set})


class ApiKey(BaseModel):
    """One issued key: the tenant it names, whether it may administer the stack, and limits of its own."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    secret: Secret = Field(description="The key, or `sha256:` and its hexadecimal digest, to keep it out of files.")
    tenant: str = Field(description="Whose documents and KV the key reaches.")
    admin: bool = Field(False, description="Whether the key may administer the stack.")
    limits: Limits = Field(Limits(), description="Limits of this key in place of those that hold for every key.")


class GatewaySettings(BaseModel):
    """The settings of one gateway. Times are seconds (``_s``), sizes bytes."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    api_keys: tuple[ApiKey, ...] = Field(
        (), description="Issued keys. Without any the gateway is open, which is meant for one's own machine."
    )
    admin_key: Secret | None = Field(
        None,
        description="The key of the admin routes, or its `sha256:` digest. Without one they take API keys marked "
        "`admin`, and everyone where no API keys are issued.",
    )
    default_tenant: str = Field("default", description="Who everyone is while no keys are issued.")
    limits: Limits = Field(Limits(), description="What each key may do; of an open gateway, all callers together.")
    max_concurrent_queries: int = Field(1024, gt=0, description="Queries under way at once, of all keys together.")
    max_open_requests: int = Field(4096, gt=0, description="Requests of any kind that are answered at once.")
    default_top_k: int = Field(4, gt=0, description="Chunks to answer from where the request does not say.")
    default_document_order: DocumentOrder = Field(
        DocumentOrder.RETRIEVAL,
        description="Order of a prompt's documents where the request does not say: retrieval (best first), canonical "
        "(equal sets make one prompt) or cached-first (the longest cached front).",
    )
    default_max_tokens: int = Field(256, gt=0, description="Longest answer where the request does not say, in tokens.")
    max_query_chars: int = Field(32_768, gt=0, description="Longest question, in characters.")
    max_query_bytes: int = Field(256 * 1024, gt=0, description="Largest body of a request that carries no document.")
    max_document_bytes: int = Field(32 * MIB, gt=0, description="Largest body of a document or of a batch of them.")
    max_bodies_bytes: int = Field(256 * MIB, gt=0, description="Bodies that are held in memory at once, all together.")
    body_timeout_s: float = Field(300.0, gt=0, description="How long a client may take to send a body.")
    send_timeout_s: float = Field(60.0, gt=0, description="How long a client may leave a piece of a stream unread.")
    query_timeout_s: float = Field(300.0, gt=0, description="From a query's arrival to its last token.")
    first_step_timeout_s: float = Field(180.0, gt=0, description="From admission to the engine's first step.")
    query_log_mib: int = Field(
        16,
        ge=0,
        description="How much of past queries is kept on disk, for warming up the cache; once more for older ones. "
        "0: nothing.",
    )
    hold_back_s: float = Field(
        1.0,
        ge=0,
        description="How long a stream waits in the queue before its response starts; until then it is refusable.",
    )
    ping_s: float = Field(15.0, gt=0, description="Between two comment lines that keep an idle stream alive.")
    retry_after_s: int = Field(2, ge=0, description="What 429 and 503 tell the client to wait.")
    readiness_interval_s: float = Field(1.0, gt=0, description="Between two looks at whether the parts are there.")
    readiness_timeout_s: float = Field(5.0, gt=0, description="How long a part may take to say so.")
    drain_s: float = Field(10.0, ge=0, description="How long shutdown waits for leases to be given back.")

    @model_validator(mode="after")
    def _every_body_fits(self) -> Self:
        if self.max_bodies_bytes < max(self.max_document_bytes, self.max_query_bytes):
            raise ValueError("max_bodies_bytes must be at least max_document_bytes and max_query_bytes")
        return self
