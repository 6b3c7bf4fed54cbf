"""How the parts are placed and multiplied by Ray Serve: its settings here, under the names that it has for them."""

from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator


class PlacementSettings(BaseModel):
    """What a replica of one part claims of its machine, and how long it may take to end."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    num_cpus: float = Field(0, ge=0, description="CPUs that Ray sets aside for a replica; 0: it shares.")
    num_gpus: float = Field(0, ge=0, description="GPUs that Ray sets aside for a replica.")
    resources: dict[str, float] = Field(
        default_factory=dict, description="Ray's custom resources that a replica claims, which say where it may run."
    )
    drain_s: float = Field(10.0, gt=0, description="How long a replica that is to end may finish what it has begun.")


class ReplicaSettings(PlacementSettings):
    """The same of a part that may have several replicas."""

    min_replicas: int = Field(1, ge=1, description="Replicas that are always there.")
    max_replicas: int | None = Field(
        None, ge=1, description="Most replicas, where there is load for them; by default no more than always."
    )
    target_ongoing_requests: float = Field(
        16.0,
        gt=0,
        description="Calls under way for each replica beyond which another is started; queries that wait are none.",
    )
    look_back_s: float = Field(
        30.0, gt=10, description="Over how long calls under way are averaged; Ray Serve counts them every ten seconds."
    )
    upscale_delay_s: float = Field(30.0, ge=0, description="How long load must last before replicas are added.")
    downscale_delay_s: float = Field(600.0, ge=0, description="How long there must be less before some are removed.")

    @model_validator(mode="after")
    def _at_least_as_many(self) -> Self:
        if self.max_replicas is not None and self.max_replicas < self.min_replicas:
            raise ValueError("max_replicas must be at least min_replicas")
        return self

    @property
    def scales(self) -> bool:
        """Whether there are more replicas where there is load for them."""
        return self.max_replicas is not None and self.max_replicas > self.min_replicas


class ServingSettings(BaseModel):
    """The placement of each part. Retriever (or each of its shards) and controller are one replica each."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    generator: ReplicaSettings = Field(
        ReplicaSettings(drain_s=300.0), description="Instances of the engine; each loads the model."
    )
    gateway: ReplicaSettings = Field(
        ReplicaSettings(drain_s=300.0, target_ongoing_requests=64.0),
        description="Gateways behind Ray Serve's proxy (`server.ingress: serve`).",
    )
    retriever: PlacementSettings = Field(PlacementSettings(), description="The retriever, or each of its shards.")
    controller: PlacementSettings = Field(PlacementSettings(), description="The cache controller.")
