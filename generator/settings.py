"""The generator's section of the configuration."""

from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self
from urllib.parse import urlsplit

from blake3 import blake3
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

from protocol.errors import ConfigError
from protocol.generation import ADAPTER_NAME


class FakeEngineSettings(BaseModel):
    """Speeds of the fake engine. The defaults are those of a 7B model on one A10G (RAGCache, section 3)."""

    model_config = ConfigDict(extra="forbid")

    prefill_tokens_per_s: float = Field(
        4000.0, gt=0, description="Prompt tokens prefilled per second, one prompt at a time."
    )
    decode_tokens_per_s: float = Field(30.0, gt=0, description="Answer tokens per second of each stream.")


_STORES = {"s3": "bucket", "gs": "bucket", "az": "container", "file": "folder"}
"""What the URL of an object store names, by scheme."""


class ObjectStoreSettings(BaseModel):
    """An object store that holds KV instead of a folder. Its credentials come from the environment alone."""

    model_config = ConfigDict(extra="forbid")

    url: str = Field(
        description="`s3://bucket/prefix`, `gs://bucket/prefix`, `az://container/prefix`, or `file:///folder`. "
        "Credentials come from the environment, such as AWS_ACCESS_KEY_ID, GOOGLE_APPLICATION_CREDENTIALS or "
        "AZURE_STORAGE_ACCOUNT_NAME."
    )
    endpoint: str | None = Field(None, description="Address of a store that is not the cloud's own, such as MinIO.")
    region: str | None = Field(None, description="Region of the bucket, for `s3`.")
    allow_http: bool = Field(False, description="Allow an endpoint without TLS. KV then travels unencrypted.")
    timeout_s: float = Field(
        2.0, gt=0, description="Longest that one request may take. KV that is not there then is computed."
    )

    @model_validator(mode="after")
    def _names_a_store(self) -> Self:
        parts = urlsplit(self.url)
        if parts.scheme not in _STORES:
            raise ValueError(f"there is no kind of object store {parts.scheme!r}; choose one of {', '.join(_STORES)}")
        if "@" in parts.netloc or parts.query or parts.fragment:
            raise ValueError("the URL of an object store has no credentials, query or fragment")
        if parts.scheme == "file":
            if parts.netloc or parts.path in {"", "/"}:
                raise ValueError("the URL of a folder is file:// and its absolute path")
            if self.endpoint is not None:
                raise ValueError("a folder has no endpoint")
        elif not parts.netloc:
            raise ValueError(f"the URL {self.url} names no {_STORES[parts.scheme]}")
        if self.region is not None and parts.scheme != "s3":
            raise ValueError(f"{parts.scheme} takes no region")
        if self.endpoint is not None:
            address = urlsplit(self.endpoint)
            if address.scheme not in {"http", "https"} or not address.netloc or "@" in address.netloc:
                raise ValueError("an endpoint is http:// or https:// and a host, without credentials")
            if address.scheme == "http" and not self.allow_http:
                raise ValueError(f"the endpoint {self.endpoint} has no TLS; allow_http allows it")
        return self

    def within(self, folder: str) -> "ObjectStoreSettings":
        """The same store, below a folder in it."""
        return self.model_copy(update={"url": f"{self.url.rstrip('/')}/{folder}"})


class KvPlaces(NamedTuple):
    """Where one worker keeps documents' KV, and how many bytes of it.

    The disk tier is in the ``object_store``, if there is one, or else in ``disk_dir``. There is none without both.
    ``file_cache`` says whether files may stay in the operating system's file cache.
    """

    host_file: Path
    host_bytes: int
    disk_dir: Path | None
    disk_bytes: int
    file_cache: bool = True
    object_store: ObjectStoreSettings | None = None


class PeerSettings(BaseModel):
    """How machines read each other's KV."""

    model_config = ConfigDict(extra="forbid")

    key_file: Path | None = Field(
        None,
        description="File with a secret of 16 characters or more, the same on all machines. With it, each machine "
        "serves its KV to those that know the secret. What they send each other is not encrypted.",
    )
    host: str = Field(
        "",
        description="Address of this machine at which the others reach it; by default its address in Ray's cluster.",
    )
    port: int = Field(
        0, ge=0, lt=1 << 16, description="Port of an engine's first rank; the next ranks have the next ports. 0: any."
    )
    timeout_s: float = Field(
        1.0, gt=0, description="Longest that a load waits for other machines' KV. What is not there then is computed."
    )

    def key(self) -> str | None:
        """The secret; None if there is none. Raises ConfigError if the file cannot be read."""
        if self.key_file is None:
            return None
        try:
            return self.key_file.read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"the key of the peers cannot be read from {self.key_file}: {error}") from error


class KvSettings(BaseModel):
    """Where documents' KV is kept, and how much of it."""

    model_config = ConfigDict(extra="forbid")

    enabled: bool | Literal["auto"] = Field(
        "auto",
        description="Keep documents' KV. `auto`: keep it if the connector supports the model and the engine's options, "
        "else use only vLLM's own prefix cache, and log what is not supported. `true`: else refuse to start. `false`: "
        "use only vLLM's own prefix cache.",
    )
    gpu_share: float = Field(
        0.5, ge=0, lt=1, description="Share of the engine's KV cache for documents; requests need the rest."
    )
    host_gib: float = Field(1.0, ge=0, description="Host memory for KV in GiB, shared by the instances of a machine.")
    host_dir: Path = Field(
        Path("/dev/shm"),  # noqa: S108  # nosec B108  # a file there is opened only if it belongs to this user
        description="The tmpfs that holds this memory.",
    )
    disk_gib: float = Field(8.0, ge=0, description="Disk space for KV in GiB; survives restarts.")
    disk_dir: Path | None = Field(
        None,
        description="Folder for KV on disk; by default `kv` in the data folder. `{node}` in it stands for the node's "
        "address, if machines with a common file system are to have a folder each.",
    )
    object_store: ObjectStoreSettings | None = Field(
        None, description="Object store that holds KV in the place of `disk_dir`; `disk_gib` bounds it, too."
    )
    file_cache: bool = Field(
        True,
        description="Leave files of KV in the operating system's file cache, which makes reading them again faster; "
        "false: the disk tier takes no memory, and every read comes from the disk.",
    )
    page_layout: Literal["engine", "neutral"] = Field(
        "engine",
        description="Order of the numbers in a page of KV. `engine`: that of the attention backend, which is fastest. "
        "`neutral`: the same for all backends, so that engines on GPUs and CPUs share KV. Blocks have 32 tokens then.",
    )
    peers: PeerSettings = Field(PeerSettings(), description="Reading KV that other machines hold.")
    auxiliary_model: str | None = Field(
        None,
        description="Small model that `cacheclip` selects with, on the CPU: the one that ships with the stack, a "
        "folder, or a Hugging Face id. Without it, `cacheclip` composes nothing.",
    )
    auxiliary_gib: float = Field(0.25, ge=0, description="Memory for this model's own KV of documents, in GiB.")
    graph_gib: float = Field(
        1.0,
        ge=0,
        description="Memory for KV of facts out of knowledge graphs, in GiB. It does not outlast the engine.",
    )

    @property
    def host_file(self) -> Path:
        """The file that holds host memory. Instances with the same folder of KV on disk share it."""
        folder = str(self.disk_dir.resolve()) if self.disk_dir else "none"
        return self.host_dir / f"ragtree-{blake3(folder.encode()).hexdigest(6)}.kv"

    def places(self, rank: int = 0, ranks: int = 1) -> KvPlaces:
        """The places of one of ``ranks`` tensor-parallel workers. They share the memory evenly."""
        host_bytes, disk_bytes = (int(gib * (1 << 30)) // ranks for gib in (self.host_gib, self.disk_gib))
        host_file, folder, store = self.host_file, self.disk_dir, self.object_store
        if ranks > 1:
            name = f"rank-{rank}-of-{ranks}"
            host_file = host_file.with_suffix(f".{name}.kv")
            folder = folder / name if folder is not None else None
            store = store.within(name) if store is not None else None
        return KvPlaces(host_file, host_bytes, folder if store is None else None, disk_bytes, self.file_cache, store)

    def discard_host_memory(self) -> None:
        """Delete the files that hold host memory, and so free it. Call it when no engine uses it any more."""
        for file in self.host_dir.glob(f"{self.host_file.stem}.*"):
            file.unlink(missing_ok=True)


DTYPE_OF_GPUS = "bfloat16"
"""What the dtype ``auto`` is on a GPU."""


ROOM_FOR_ADAPTERS = ("enable_lora", "max_loras", "max_lora_rank")
"""vLLM's arguments for how many adapters, and of which rank, there is room for."""


class GeneratorSettings(BaseModel):
    """Which engine runs which model, with which resources."""

    model_config = ConfigDict(extra="forbid")

    engine: Literal["vllm", "fake"] = Field("vllm", description="`fake` answers without a model, at fixed speeds.")
    model: str = Field(
        "smollm2-135m-instruct",
        description="The model that ships with the stack, a model folder, a GGUF file, or a Hugging Face id.",
    )
    adapters: dict[Annotated[str, StringConstraints(pattern=ADAPTER_NAME)], str] = Field(
        default_factory=dict,
        description="LoRA adapters, each served as a model of its name: its folder or Hugging Face id, by name. Their "
        "KV is kept apart, and is not composed; nor is the model's own beside them.",
    )
    max_model_len: int = Field(8192, gt=0, description="Longest prompt plus answer, in tokens.")
    dtype: str = Field(
        "auto",
        description="Dtype of weights and KV, as in vLLM; auto: bfloat16, or float32 on a CPU without bfloat16.",
    )
    max_num_seqs: int = Field(64, gt=0, description="Maximum number of sequences in one engine step.")
    cpu_threads: int = Field(
        1,
        gt=0,
        description="Threads of the engine on a machine without a GPU. Tensor-parallel ranks share them. In a stack, "
        "OMP_NUM_THREADS has no effect.",
    )
    cpu_kv_cache_gib: int = Field(1, gt=0, description="KV cache on a machine without a GPU, in GiB.")
    engine_args: dict[str, Any] = Field(
        default_factory=dict, description="Further engine arguments of vLLM, by name; they override the options above."
    )
    system_prompt: str = Field(
        "Answer the question in one short sentence, from the documents alone. If the documents do not hold the answer, "
        "reply only: I do not know.",
        description="System prompt, in front of the documents. The default is the best of seven with the model that "
        "ships with the stack.",
    )
    preamble: str = Field(
        "The following documents were collected from several sources. Each of them is independent of the others, and "
        "the order in which they appear has no meaning. They are quoted in full and without any changes. The question "
        "stands at the end. Read all of the documents before you answer it, and compare what they say. Answer with "
        "names, numbers and codes exactly as they are written in the documents.",
        description="Text at the start of the user's turn, in front of the documents; may be empty. Some eighty "
        "tokens of it make composed answers better.",
    )
    frequency_penalty: float | None = Field(
        None,
        ge=-2,
        le=2,
        description="Frequency penalty of answers whose request has none, and no JSON schema; by default 0.5 for the "
        "model that ships with the stack, which repeats itself without it, and 0 for others.",
    )
    schema_cpu_s: int = Field(
        5,
        gt=0,
        description="Seconds of processor time that the check of one JSON schema may take. A key's new schemas may "
        "take three times as much a minute. Large vocabularies and long strings with `maxLength` take more.",
    )
    kv: KvSettings = Field(KvSettings(), description="Storage of documents' KV.")
    fake: FakeEngineSettings = Field(FakeEngineSettings(), description="Speeds of the fake engine.")

    @property
    def gpu_memory_utilization(self) -> float:
        """The share of the GPU's memory for the engine."""
        return float(self.engine_args.get("gpu_memory_utilization", 0.9))

    @property
    def serves_adapters(self) -> bool:
        """Whether the engine has room for adapters, now or later."""
        given = self.engine_args
        room = given.get("enable_lora", any(given.get(name) for name in ROOM_FOR_ADAPTERS))
        return bool(self.adapters) or bool(room)
