"""The configuration of the whole stack: each part's settings, data folders, and the server's address.

A value comes from the first source that has it: the environment (``RAGTREE_GENERATOR__MODEL=...``), a YAML file
(``ragtree.yaml`` in the current folder, or the file that ``RAGTREE_CONFIG`` names), or the default. Each option is
declared once, in the part that reads it.
"""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal, Self, get_args

import yaml
from platformdirs import user_cache_path, user_data_path
from pydantic import BaseModel, Field, ValidationError, model_validator
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
    YamlConfigSettingsSource,
)

from cachectl.settings import ControllerSettings
from gateway.settings import GatewaySettings
from generator.settings import DTYPE_OF_GPUS, GeneratorSettings
from protocol.errors import ConfigError
from retriever.settings import RetrieverSettings
from retriever.sharding.shard_folders import ShardFolders
from services.dropped_options import DROPPED_OPTIONS
from services.observability.settings import ObservabilitySettings
from services.redis.link import RedisSettings
from services.serve.replica_settings import ServingSettings


class ServerSettings(BaseModel, extra="forbid"):
    """The gateway's address and its HTTP server."""

    host: str = Field("127.0.0.1", description="Address the gateway listens on.")
    port: int = Field(8080, ge=0, le=65535, description="Port the gateway listens on.")
    ingress: Literal["uvicorn", "serve"] = Field(
        "uvicorn",
        description="uvicorn: its own server, 10 ms faster (lab/results); serve: behind Ray Serve's proxy.",
    )


class ClusterSettings(BaseModel, extra="forbid", frozen=True):
    """A machine in a stack of several. The first one runs ``ragtree up``, the others ``ragtree join``."""

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


class Config(BaseSettings):
    """All settings."""

    model_config = SettingsConfigDict(env_prefix="RAGTREE_", env_nested_delimiter="__", extra="forbid")

    data_dir: Path = Field(
        user_data_path("ragtree"), description="Documents, indexes and the state of a running stack."
    )
    cache_dir: Path = Field(user_cache_path("ragtree"), description="Converted models. Safe to delete at any time.")
    server: ServerSettings = Field(ServerSettings(), description="The gateway's address.")
    gateway: GatewaySettings = Field(GatewaySettings(), description="The HTTP API.")
    retriever: RetrieverSettings = Field(RetrieverSettings(), description="Ingestion and search.")
    controller: ControllerSettings = Field(ControllerSettings(), description="Admission and caching.")
    observability: ObservabilitySettings = Field(ObservabilitySettings(), description="Logs and traces.")
    serving: ServingSettings = Field(ServingSettings(), description="Replicas and their placement.")
    generator: GeneratorSettings = Field(GeneratorSettings(), description="The engine and its model.")
    cluster: ClusterSettings = Field(ClusterSettings(), description="This machine in a stack of several.")
    redis: RedisSettings = Field(
        RedisSettings(), description="State shared by several gateways. Without it, each gateway has its own."
    )

    @model_validator(mode="after")
    def _kv_generators_share_pages(self) -> Self:
        if self.serving.kv_generators_on_cpus and self.generator.kv.page_layout != "neutral":
            raise ValueError(
                "serving.kv_generators without num_gpus run on CPUs, and generators on GPUs cannot read their pages; "
                "set generator.kv.page_layout to neutral"
            )
        return self

    @property
    def shard_folders(self) -> ShardFolders:
        """The data folders of the retriever's shards."""
        return ShardFolders(self.data_dir / "retriever", self.retriever.shards.count)

    def for_kv_generators(self) -> "Config":
        """The configuration of instances that only generate KV: with their own engine arguments.

        On CPUs beside GPUs they have the dtype of those, also if a CPU itself would choose another one.
        """
        own: dict[str, Any] = {
            "engine_args": {**self.generator.engine_args, **self.serving.kv_generators.engine_args},
        }
        if self.serving.kv_generators_on_cpus and self.generator.dtype == "auto":
            own["dtype"] = DTYPE_OF_GPUS
        return self.model_copy(update={"generator": self.generator.model_copy(update=own)})

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Order the sources: constructor arguments, the environment, the YAML file."""
        return init_settings, env_settings, YamlConfigSettingsSource(settings_cls, yaml_file=config_file())


def config_file() -> Path | None:
    """Return the YAML file in use, if any.

    Raises ConfigError if ``RAGTREE_CONFIG`` names a file that does not exist.
    """
    named = os.environ.get("RAGTREE_CONFIG")
    if named:
        if not Path(named).is_file():
            raise ConfigError(f"RAGTREE_CONFIG names {named!r}, which does not exist")
        return Path(named)
    here = Path("ragtree.yaml")
    return here if here.is_file() else None


def _faults(error: ValidationError) -> Iterator[tuple[str, str]]:
    """Each option that is not valid, and why."""
    for fault in error.errors():
        name = _name(fault["loc"])
        dropped = DROPPED_OPTIONS.get(name)
        yield name, fault["msg"] if dropped is None else f"there is no such option any more: {dropped}"


def _name(place: Iterable[str | int]) -> str:
    """Return an option's name as users write it: pydantic names the kind after an option of several kinds."""
    name: list[str] = []
    models: set[type[BaseModel]] = {Config}
    is_kind = False
    for part in place:
        if is_kind:
            is_kind = False
            continue
        name.append(str(part))
        fields = [model.model_fields[str(part)] for model in models if str(part) in model.model_fields]
        models = set[type[BaseModel]]().union(*(_models(field.annotation) for field in fields))
        is_kind = len(models) > 1
    return ".".join(name)


def _models(annotation: object) -> set[type[BaseModel]]:
    """Return the models that a value of this type may be."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return {annotation}
    return set[type[BaseModel]]().union(*map(_models, get_args(annotation)))


def load_config() -> Config:
    """Read the configuration. Raises ConfigError with one line for each invalid option."""
    try:
        return Config()
    except ValidationError as error:
        lines = [f"  {name}: {message}" for name, message in _faults(error)]
        raise ConfigError("\n".join(["the configuration is not valid:", *lines])) from error
    except SettingsError as error:
        raise ConfigError(f"the environment or {config_file() or 'ragtree.yaml'} is not valid: {error}") from error
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigError(f"{config_file()} is not a YAML file of options: {error}") from error
