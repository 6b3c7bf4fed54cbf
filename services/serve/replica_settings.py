"""Settings of replicas and their placement, under Ray Serve's names."""

from typing import Any, Self

from pydantic import BaseModel, Field, field_validator, model_validator


class PlacementSettings(BaseModel, extra="forbid", frozen=True):
    """Resources that a replica of one part reserves."""

    num_cpus: float = Field(0, ge=0, description="CPUs that Ray reserves for a replica; 0: it shares them.")
    resources: dict[str, float] = Field(
        default_factory=dict, description="Ray's custom resources that a replica needs; they decide where it may run."
    )


class DeviceSettings(PlacementSettings):
    """Placement of a part that may compute on a GPU."""

    num_gpus: float = Field(0, ge=0, description="GPUs that Ray reserves for a replica.")


class ReplicaSettings(PlacementSettings):
    """Placement of a part that may have several replicas."""

    min_replicas: int = Field(1, ge=1, description="The least number of replicas.")
    max_replicas: int | None = Field(
        None, ge=1, description="The most replicas under load; by default the same as min_replicas."
    )
    upscale_delay_s: float = Field(30.0, ge=0, description="How long high load must last before replicas are added.")
    downscale_delay_s: float = Field(
        600.0, ge=0, description="How long low load must last before replicas are removed."
    )

    @model_validator(mode="after")
    def _at_least_as_many(self) -> Self:
        if self.max_replicas is not None and self.max_replicas < self.min_replicas:
            raise ValueError("max_replicas must be at least min_replicas")
        return self

    @property
    def scales(self) -> bool:
        """Whether the number of replicas follows the load."""
        return self.max_replicas is not None and self.max_replicas > self.min_replicas


class InstanceSettings(ReplicaSettings, DeviceSettings):
    """Placement of the engine's instances."""


DECIDE_KV = frozenset(
    {
        "block_size",
        "dtype",
        "hf_overrides",
        "kv_cache_dtype",
        "kv_transfer_config",
        "load_format",
        "model",
        "pipeline_parallel_size",
        "quantization",
        "revision",
        "rope_scaling",
        "seed",
        "tensor_parallel_size",
        "tokenizer",
    }
)
"""Engine arguments of vLLM that decide what KV is and how it is cut into pages. All instances have the same."""


class KvGeneratorSettings(DeviceSettings):
    """Placement of instances that answer no query, and prefill documents of queries that wait for the others."""

    replicas: int = Field(
        0,
        ge=0,
        description="The number of instances that only generate KV, for queries that wait. Each loads the model.",
    )
    engine_args: dict[str, Any] = Field(
        default_factory=dict,
        description="Engine arguments of vLLM for these instances, by name; they override those of the generator.",
    )

    @field_validator("engine_args")
    @classmethod
    def _leave_kv_as_it_is(cls, engine_args: dict[str, Any]) -> dict[str, Any]:
        different = sorted(DECIDE_KV.intersection(engine_args))
        if different:
            raise ValueError(
                f"{', '.join(different)} must be the same for all instances, which otherwise cannot use each other's "
                "KV; set generator.engine_args"
            )
        return engine_args


class ServingSettings(BaseModel, extra="forbid", frozen=True):
    """The placement of each part. The retriever (or each of its shards) and the controller have one replica each."""

    generator: InstanceSettings = Field(
        InstanceSettings(), description="Instances of the engine. Each loads the model."
    )
    kv_generators: KvGeneratorSettings = Field(
        KvGeneratorSettings(), description="Instances of the engine that only generate KV, for queries that wait."
    )
    gateway: ReplicaSettings = Field(
        ReplicaSettings(), description="Gateways behind Ray Serve's proxy (`server.ingress: serve`)."
    )
    retriever: DeviceSettings = Field(DeviceSettings(), description="The retriever, or each of its shards.")
    controller: PlacementSettings = Field(PlacementSettings(), description="The cache controller.")

    @property
    def kv_generators_on_cpus(self) -> bool:
        """Whether there are KV generators on CPUs, beside generators on GPUs."""
        return self.kv_generators.replicas > 0 and self.generator.num_gpus > 0 and self.kv_generators.num_gpus == 0
