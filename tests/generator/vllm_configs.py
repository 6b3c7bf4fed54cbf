"""vLLM's configurations with the connector, without an engine."""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias
from unittest import mock

from engine_settings import small_engine

from generator.engines.vllm_arguments import engine_arguments, prepare_environment

if TYPE_CHECKING:
    from vllm.config import VllmConfig

Configuring: TypeAlias = "Callable[..., VllmConfig]"


def make_config_folders(folder: Path) -> dict[str, Path]:
    """Model folders without weights, by kind."""
    from tiny_models import gemma4, gpt_oss, llama, make_config_folder, mistral

    kinds = {"llama": llama(), "gemma4": gemma4(), "gpt-oss": gpt_oss(), "mistral": mistral(), "long": mistral(1024)}
    return {name: make_config_folder(folder / name, config) for name, config in kinds.items()}


@contextmanager
def configuring(folders: Mapping[str, Path], work: Path) -> Iterator[Configuring]:
    """Makes configurations of these models, from further engine arguments, with KV in ``work``."""

    def make(model: str = "llama", **given: Any) -> "VllmConfig":
        from vllm.engine.arg_utils import AsyncEngineArgs

        arguments = engine_arguments(small_engine(work), folders[model], "engine")
        transfer = arguments["kv_transfer_config"] | given.pop("kv_transfer_config", {})
        return AsyncEngineArgs(**(arguments | {"kv_transfer_config": transfer} | given)).create_engine_config()

    # vLLM changes variables of the environment when it makes a configuration.
    with mock.patch.dict(os.environ):
        prepare_environment(small_engine(work))
        yield make
