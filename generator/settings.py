"""The generator's part of the configuration."""

from pathlib import Path
from typing import Any, Literal

from blake3 import blake3
from pydantic import BaseModel, ConfigDict, Field


class FakeEngineSettings(BaseModel):
    """Speeds of the fake engine, by default those of a 7B model on one A10G (RAGCache, section 3)."""

    model_config = ConfigDict(extra="forbid")

    prefill_tokens_per_s: float = Field(4000.0, gt=0, description="Prompt tokens prefilled per second, one at a time.")
    step_tokens: int = Field(256, gt=0, description="Prompt tokens of a step, after which a prefill can be ended.")
    decode_tokens_per_s: float = Field(30.0, gt=0, description="Answer tokens per second of each stream.")


class KvSettings(BaseModel):
    """Where documents' KV may be kept, and how much of it."""

    model_config = ConfigDict(extra="forbid")

    enabled: bool = Field(True, description="Keep documents' KV at all; false: only vLLM's own prefix cache.")
    gpu_share: float = Field(
        0.5, ge=0, lt=1, description="Share of the engine's KV cache that documents may hold; requests need the rest."
    )
    host_gib: float = Field(1.0, ge=0, description="KV in host memory, shared by the instances of a machine, in GiB.")
    host_dir: Path = Field(
        Path("/dev/shm"),  # noqa: S108  # nosec B108  # only a file of this user's own is opened there
        description="Where that memory is mapped from: a tmpfs.",
    )
    disk_gib: float = Field(8.0, ge=0, description="KV on disk, in GiB; survives restarts.")
    disk_dir: Path | None = Field(None, description="Folder of the KV on disk; by default `kv` in the data folder.")
    loader_threads: int = Field(2, gt=0, description="Threads that load from disk, each document with all of them.")

    @property
    def host_file(self) -> Path:
        """The file that host memory is mapped from: one for each folder of KV on disk, whoever opens it."""
        folder = str(self.disk_dir.resolve()) if self.disk_dir else "none"
        return self.host_dir / f"ragtree-{blake3(folder.encode()).hexdigest(6)}.kv"

    def discard_host_memory(self) -> None:
        """Give the memory back that ``host_file`` is, once no engine uses it any more."""
        for file in (self.host_file, self.host_file.with_name(f"{self.host_file.name}.lock")):
            file.unlink(missing_ok=True)


class GeneratorSettings(BaseModel):
    """Which engine runs which model, and with what of the machine."""

    model_config = ConfigDict(extra="forbid")

    engine: Literal["vllm", "fake"] = Field("vllm", description="`fake` answers without a model, at set speeds.")
    model: str = Field(
        "smollm2-135m-instruct",
        description="The model that ships with the stack, a Hugging Face model folder, or a Hugging Face id.",
    )
    max_model_len: int = Field(8192, gt=0, description="Longest prompt plus answer, in tokens.")
    dtype: str = Field(
        "auto",
        description="Type of weights and KV, as vLLM names it; auto: bfloat16, or float32 on a CPU without it.",
    )
    max_num_seqs: int = Field(64, gt=0, description="Most sequences in one engine step.")
    cpu_threads: int = Field(1, gt=0, description="Threads of the engine on a machine without a GPU.")
    cpu_kv_cache_gib: int = Field(1, gt=0, description="KV cache on a machine without a GPU, in GiB.")
    gpu_memory_utilization: float = Field(0.9, gt=0, le=1, description="Share of the GPU's memory the engine takes.")
    engine_args: dict[str, Any] = Field(
        default_factory=dict, description="More of vLLM's engine arguments, by their own names; these win."
    )
    system_prompt: str = Field(
        "You answer the user's question from the documents given in front of it. "
        "If the documents do not hold the answer, say that you do not know.",
        description="Stands before the documents of every prompt.",
    )
    kv: KvSettings = Field(KvSettings(), description="Where documents' KV is kept.")
    fake: FakeEngineSettings = Field(FakeEngineSettings(), description="Speeds of the fake engine.")
