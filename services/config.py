"""The one configuration: each part's own settings, and where the stack keeps its files and listens.

Values come, the first that has one wins, from the environment (``RAGTREE_GENERATOR__MODEL=...``), from a YAML file
(``ragtree.yaml`` here, or the one that ``RAGTREE_CONFIG`` names), and from the defaults. Each option is declared once,
in the part that reads it.
"""

import os
from pathlib import Path
from typing import Literal, Self

import yaml
from platformdirs import user_cache_path, user_data_path
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
    YamlConfigSettingsSource,
)

from cachectl.settings import ControllerSettings
from gateway.settings import GatewaySettings
from generator.settings import GeneratorSettings
from protocol.errors import ConfigError
from retriever.settings import RetrieverSettings
from services.observability.settings import ObservabilitySettings
from services.redis.settings import RedisSettings
from services.serve.replica_settings import ServingSettings


class ServerSettings(BaseModel):
    """Where the gateway listens, and what serves it."""

    model_config = ConfigDict(extra="forbid")

    host: str = Field("127.0.0.1", description="Address the gateway listens on.")
    port: int = Field(8080, ge=0, le=65535, description="Port the gateway listens on.")
    ingress: Literal["uvicorn", "serve"] = Field(
        "uvicorn",
        description="uvicorn: beside Serve, and quicker by 10 ms (docs/results); serve: behind Ray Serve's own proxy.",
    )


class Config(BaseSettings):
    """Everything that can be configured."""

    model_config = SettingsConfigDict(env_prefix="RAGTREE_", env_nested_delimiter="__", extra="forbid")

    data_dir: Path = Field(user_data_path("ragtree"), description="Documents, indexes and what a running stack notes.")
    cache_dir: Path = Field(user_cache_path("ragtree"), description="Converted models; may be deleted at any time.")
    server: ServerSettings = Field(ServerSettings(), description="Where the gateway listens.")
    gateway: GatewaySettings = Field(GatewaySettings(), description="The HTTP API.")
    retriever: RetrieverSettings = Field(RetrieverSettings(), description="Ingestion and search.")
    controller: ControllerSettings = Field(ControllerSettings(), description="Admission and caching.")
    observability: ObservabilitySettings = Field(ObservabilitySettings(), description="Logs and traces.")
    serving: ServingSettings = Field(ServingSettings(), description="Replicas, and where they run.")
    generator: GeneratorSettings = Field(GeneratorSettings(), description="The engine and its model.")
    redis: RedisSettings = Field(RedisSettings(), description="State that gateways share; each has its own without.")

    @model_validator(mode="after")
    def _leases_outlive_queries(self) -> Self:
        # What was deleted is remembered for a lease, and a query that found it before may come as late as it may run.
        if self.controller.lease_s < self.gateway.query_timeout_s:
            raise ValueError("controller.lease_s must be at least gateway.query_timeout_s")
        return self

    @model_validator(mode="after")
    def _full_instances_are_too_few(self) -> Self:
        # Serve sees what runs, and no instance is given more than this: what else there is waits with the controller.
        generator, most = self.serving.generator, self.controller.max_running
        if generator.scales and generator.target_ongoing_requests >= most:
            raise ValueError("serving.generator.target_ongoing_requests must be less than controller.max_running")
        return self

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Take what is passed in first, then the environment, then the YAML file."""
        return init_settings, env_settings, YamlConfigSettingsSource(settings_cls, yaml_file=config_file())


def config_file() -> Path | None:
    """The YAML file in force, if there is one. Raises ConfigError when ``RAGTREE_CONFIG`` names none."""
    named = os.environ.get("RAGTREE_CONFIG")
    if named:
        if not Path(named).is_file():
            raise ConfigError(f"RAGTREE_CONFIG names {named!r}, which is no file")
        return Path(named)
    here = Path("ragtree.yaml")
    return here if here.is_file() else None


def load_config() -> Config:
    """Read the configuration. Raises ConfigError with a line for each thing wrong with it."""
    try:
        return Config()
    except ValidationError as error:
        lines = [f"  {'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors()]
        raise ConfigError("\n".join(["the configuration is not valid:", *lines])) from error
    except SettingsError as error:
        raise ConfigError(f"the environment or {config_file() or 'ragtree.yaml'} is not valid: {error}") from error
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigError(f"{config_file()} is no YAML file of options: {error}") from error
