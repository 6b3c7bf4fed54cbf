"""The gateway's section of the configuration: API keys, limits, timeouts and defaults of requests."""

from typing import Annotated, ClassVar, NamedTuple, Self

from pydantic import AfterValidator, BaseModel, Field, SecretStr, model_validator

from gateway.query.follow_ups import FollowUps
from protocol.plans import DocumentOrder, Reuse

MIB = 1024 * 1024


def _no_mask(secret: SecretStr) -> SecretStr:
    if not secret.get_secret_value().strip("*"):
        raise ValueError("this is how `ragtree config show` masks keys; set the key itself")
    return secret


Secret = Annotated[SecretStr, AfterValidator(_no_mask)]


class Limits(BaseModel, extra="forbid", frozen=True):
    """Limits of one API key. None means no limit. A minute is always the last 60 seconds."""

    requests_per_minute: int | None = Field(None, gt=0, description="Requests of any kind.")
    tokens_per_minute: int | None = Field(
        None, gt=0, description="Tokens of prompts, cached ones included, and of answers."
    )
    concurrent_queries: int | None = Field(None, gt=0, description="Concurrent queries and searches per gateway.")
    documents_per_minute: int | None = Field(None, gt=0, description="Uploaded documents. Each line of a batch is one.")
    upload_bytes_per_minute: int | None = Field(None, gt=0, description="Uploaded bytes, documents and batches.")
    concurrent_uploads: int | None = Field(None, gt=0, description="Concurrent uploads per gateway.")

    def overridden_by(self, others: "Limits") -> "Limits":
        """A copy of these limits. Limits that ``others`` sets explicitly, None included, replace them."""
        return self.model_copy(update={name: getattr(others, name) for name in others.model_fields_set})


class ApiKey(BaseModel, extra="forbid", frozen=True):
    """One API key: its tenant, whether it is an administrator's, and its own limits."""

    secret: Secret = Field(description="The key, or `sha256:` and its hexadecimal digest to keep the key out of files.")
    tenant: str = Field(description="Tenant whose documents and KV the key gives access to.")
    admin: bool = Field(False, description="Whether the key gives access to the admin routes.")
    limits: Limits = Field(Limits(), description="Limits that override the common ones for this key.")
    reuse: Reuse | None = Field(
        None, description="Which KV the key's queries may use if they do not say; by default, as `controller.reuse`."
    )


class Pace(NamedTuple):
    """Times in seconds that the gateway keeps to, and that nobody who runs it has to choose. Tests shorten them.

    - ``readiness_interval_s``: between two checks of the other parts. ``readiness_timeout_s``: for a part's answer.
    - ``hold_back_s``: how long a query waits in the queue before its stream starts. Until then it can be refused.
    - ``first_step_timeout_s``: from admission to the engine's first step.
    - ``rewrite_timeout_s``: for the model to rewrite a follow-up, which is joined after it.
    - ``body_timeout_s``: for a client to send a body. ``send_timeout_s``: for a client to read a piece of a stream.
    - ``ping_s``: between the comment lines that keep an idle stream alive.
    - ``retry_after_s``: what a 429 or 503 says if its end is unknown.
    - ``drain_s``: how long shutdown waits for leases to be released.
    """

    readiness_interval_s: float = 1.0
    readiness_timeout_s: float = 5.0
    hold_back_s: float = 1.0
    first_step_timeout_s: float = 180.0
    rewrite_timeout_s: float = 5.0
    body_timeout_s: float = 300.0
    send_timeout_s: float = 60.0
    ping_s: float = 15.0
    retry_after_s: int = 2
    drain_s: float = 10.0


class GatewaySettings(BaseModel, extra="forbid", frozen=True):
    """Settings of the gateway. Times are in seconds (``_s``), sizes in bytes. ``pace`` is not configured."""

    pace: ClassVar[Pace] = Pace()

    api_keys: tuple[ApiKey, ...] = Field(
        (), description="API keys. Without any, requests need no key; use that only on your own machine."
    )
    admin_key: Secret | None = Field(
        None,
        description="Key of the admin routes, or its `sha256:` digest. Without one, they accept API keys marked "
        "`admin`, or any caller if there are no API keys.",
    )
    default_tenant: str = Field("default", description="Tenant of all callers while there are no API keys.")
    limits: Limits = Field(Limits(), description="Limits of each key. Without keys, all callers share them.")
    max_concurrent_queries: int = Field(1024, gt=0, description="Concurrent queries and searches of all keys together.")
    max_open_requests: int = Field(4096, gt=0, description="Concurrent requests of any kind.")
    default_top_k: int = Field(4, gt=0, description="Chunks to answer from, if the request does not say.")
    default_follow_ups: FollowUps = Field(
        FollowUps.JOINED,
        description="How a follow-up in a conversation is searched, if the request does not say: alone, joined with "
        "the questions before it, or rewritten by the model into a question that stands alone.",
    )
    default_document_order: DocumentOrder = Field(
        DocumentOrder.RETRIEVAL,
        description="Order of a prompt's documents, if the request does not say: retrieval (best first), canonical "
        "(equal sets make one prompt) or cached-first (longest cached prefix).",
    )
    default_max_tokens: int = Field(256, gt=0, description="Longest answer in tokens, if the request does not say.")
    max_query_chars: int = Field(
        32_768, gt=0, description="Longest question, in characters. A body without documents has eight bytes for each."
    )
    max_document_bytes: int = Field(32 * MIB, gt=0, description="Largest body of a document or a batch.")
    max_bodies_bytes: int = Field(256 * MIB, gt=0, description="Memory for the bodies of all open requests together.")
    query_timeout_s: float = Field(300.0, gt=0, description="Time from a query's arrival to its last token.")
    shadow_share: float = Field(
        0.02,
        ge=0,
        le=1,
        description="Share of the answers to composed prompts, and to those with facts in trees, that are computed "
        "again after a full prefill, in idle time, and compared.",
    )
    prefill_ingested: bool = Field(
        False,
        description="Prefill ingested documents while no query runs, as far as the tiers have room, so that prompts "
        "can be composed out of their KV.",
    )
    query_log_mib: int = Field(
        16,
        ge=0,
        description="Size of the log of past queries, used to warm up the cache. Its predecessor may be as large. "
        "0 turns the log off.",
    )

    @property
    def max_query_bytes(self) -> int:
        """The largest body of a request without documents. Escaped in JSON, a character takes up to eight bytes."""
        return 8 * self.max_query_chars

    @property
    def several_keys(self) -> bool:
        """Whether callers with different keys share the gateway."""
        return len(self.api_keys) + (self.admin_key is not None) > 1

    @model_validator(mode="after")
    def _every_body_fits(self) -> Self:
        if self.max_bodies_bytes < max(self.max_document_bytes, self.max_query_bytes):
            raise ValueError("max_bodies_bytes must be at least max_document_bytes and max_query_bytes")
        return self
