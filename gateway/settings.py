"""The gateway's part of the configuration: limits, timeouts, keys and the defaults of requests."""

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SecretStr

from protocol.plans import DocumentOrder

MIB = 1024 * 1024


def _no_mask(secret: SecretStr) -> SecretStr:
    if not secret.get_secret_value().strip("*"):
        raise ValueError("this is how `ragtree config show` masks a key, not a key")
    return secret


Secret = Annotated[SecretStr, AfterValidator(_no_mask)]


class ApiKey(BaseModel):
    """One issued key: the tenant it names and whether it may administer the stack."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    secret: Secret = Field(description="The key, or `sha256:` and its hexadecimal digest, to keep it out of files.")
    tenant: str = Field(description="Whose documents and KV the key reaches.")
    admin: bool = Field(False, description="Whether the key may administer the stack.")


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
