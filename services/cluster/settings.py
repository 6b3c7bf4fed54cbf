"""The cluster's section of the configuration."""

from pydantic import BaseModel, ConfigDict, Field


class ClusterSettings(BaseModel):
    """A machine in a stack of several. The first one runs ``ragtree up``, the others ``ragtree join``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    port: int | None = Field(
        None,
        gt=0,
        lt=1 << 16,
        description="Port of the first machine at which others join its stack (`ragtree join`); without it, none can.",
    )
    host: str = Field(
        "", description="Address of this machine at which the others reach it; by default the one that Ray finds."
    )
    engines: int = Field(
        1, ge=0, description="Instances of the engine, KV generators included, that have room on this machine."
    )
