"""The controller's section of the configuration."""

from enum import StrEnum
from typing import ClassVar, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, field_validator

from cachectl.policies import policy_names
from cachectl.scheduling.queue import WINDOW
from protocol.dependency import GraphAttention
from protocol.plans import Reuse

MOST_SHARDS = 64


class Swap(StrEnum):
    """When KV is copied to slower tiers: before it first leaves the GPU, or as soon as it is computed."""

    ONCE = "once"
    WRITE_THROUGH = "write_through"


class Pace(NamedTuple):
    """Times in seconds that nobody who runs the controller has to choose.

    - ``first_token_s``: for a plan's first token. Later, other queries stop waiting for it.
    - ``delete_timeout_s``: how long the deletion of a document waits for queries that use it.
    """

    first_token_s: float = 180.0
    delete_timeout_s: float = 30.0


class ControllerSettings(BaseModel):
    """What is kept, how many queries run at once, and how many may wait."""

    model_config = ConfigDict(extra="forbid")
    pace: ClassVar[Pace] = Pace()

    shards: int = Field(
        1,
        gt=0,
        le=MOST_SHARDS,
        description="Controllers that share the generator's instances, each with its part of all memory. One is enough "
        "for about a hundred instances.",
    )
    policy: str = Field("FORESIGHT", description=f"The replacement policy: {', '.join(policy_names())}.")
    swap: Swap = Field(
        Swap.ONCE,
        description="When KV is copied to host memory and disk: once, when it leaves the GPU, or write_through, "
        "as soon as it is computed.",
    )
    persist: bool = Field(True, description="Copy cached KV to disk before the stack stops, as far as there is room.")
    reorder_window: int = Field(
        WINDOW,
        ge=0,
        description="How often queries with more cached tokens may overtake a waiting query; 0 means first come, "
        "first served.",
    )
    document_score_gap: float | None = Field(
        None,
        ge=0,
        description="In cached-first order, a document stands in front of a better one only if their search scores "
        "differ by at most this. None: wherever its KV is cached.",
    )
    reuse: Reuse = Field(
        Reuse.EXACT,
        description="Which KV a prompt may use: exact, only what was computed after the same documents; composed, "
        "also what was computed elsewhere, with a share of it computed again; auto, composed where that has passed "
        "its gate.",
    )
    recompute_share: float = Field(
        0.2, ge=0, le=1, description="The share of a composed document's tokens that is computed again."
    )
    recompute_method: str = Field(
        "query",
        description="How they are chosen: query (by the question's attention) or none. The laboratory adds cacheclip "
        "and cacheclip-strict (by the attention in generator.kv.auxiliary_model), cacheblend, epic, random and ape.",
    )
    graph_attention: GraphAttention = Field(
        GraphAttention.AUTO,
        description="How prompts attend to facts of a graph: self, to every path in full; dependency, within trees, "
        "which have what paths begin with alike once; auto, dependency where that has passed its gate.",
    )
    max_running: int = Field(32, gt=0, description="Queries that run on an instance at once.")
    max_queued: int = Field(256, ge=0, description="Queries that may wait for each instance; others are refused.")
    speculation: bool = Field(
        True,
        description="Generate on provisional documents while the search continues, if the engine has room.",
    )
    prepare_after_s: float | None = Field(
        0.1,
        ge=0,
        description="Seconds in the queue after which a query's documents are prefetched before its turn: their KV "
        "is loaded, and computed if the engine has room. None switches this off.",
    )

    @field_validator("policy")
    @classmethod
    def _known(cls, policy: str) -> str:
        if policy not in policy_names():
            raise ValueError(f"there is no policy {policy!r}; choose one of {', '.join(policy_names())}")
        return policy
