"""The controller's part of the configuration."""

from enum import StrEnum

from pydantic import BaseModel, ConfigDict, Field, field_validator

from cachectl.policies import policy_names


class Swap(StrEnum):
    """When KV is copied to slower tiers: once, before it first leaves the GPU, or as soon as it was computed."""

    ONCE = "once"
    WRITE_THROUGH = "write_through"


class ControllerSettings(BaseModel):
    """What is kept, how many queries run at once, and how many may wait."""

    model_config = ConfigDict(extra="forbid")

    policy: str = Field("FORESIGHT", description=f"What decides which document KV stays: {', '.join(policy_names())}.")
    swap: Swap = Field(
        Swap.ONCE,
        description="When KV is copied to host memory and disk: once, as it leaves the GPU, or write_through, at once.",
    )
    persist: bool = Field(True, description="Copy to disk what is kept, as far as there is room, before a stack stops.")
    frequency_window_s: float = Field(86400.0, gt=0, description="A node's frequency counts so many seconds back.")
    reorder_window: int = Field(
        32, ge=0, description="How often a waiting query may be overtaken by others with more cached; 0: never."
    )
    cached_documents: int | None = Field(
        None,
        ge=0,
        description="How many of a prompt's documents, from the front, have a place in the cache; None: all.",
    )
    max_running: int = Field(32, gt=0, description="Queries that an instance works on at once.")
    max_queued: int = Field(256, ge=0, description="Queries that may wait for each instance; more are refused.")
    speculation: bool = Field(
        True,
        description="Begin to generate on provisional documents while the search goes on, where the engine has room.",
    )
    prepare_after_s: float | None = Field(
        0.1,
        ge=0,
        description="A query that waits for longer has its documents' KV loaded or computed ahead of its turn, where "
        "the engine has room; None: never.",
    )
    lease_s: float = Field(
        900.0, gt=0, description="A plan that was not completed after so many seconds is taken for lost."
    )
    first_token_s: float = Field(
        180.0, gt=0, description="A plan without a first token after so many seconds keeps nobody waiting any more."
    )
    delete_timeout_s: float = Field(
        30.0, gt=0, description="How long the deletion of a document waits for queries that use it."
    )

    state_interval_s: float = Field(
        5.0,
        gt=0,
        description="How often what a restarted controller should know is kept, where there is a Redis to keep it in.",
    )

    @field_validator("policy")
    @classmethod
    def _known(cls, policy: str) -> str:
        if policy not in policy_names():
            raise ValueError(f"there is no policy {policy!r}; there are {', '.join(policy_names())}")
        return policy
