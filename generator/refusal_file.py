"""Tells the process that starts an engine why the connector refuses to run in it.

vLLM says to that process only that the engine's process has ended.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from protocol.errors import ConfigError

if TYPE_CHECKING:
    from vllm.config import VllmConfig

REFUSAL_FILE = "refusal_file"
"""The entry of ``kv_connector_extra_config`` that names the file."""


def name_refusal_file(config: "VllmConfig", file: Path) -> None:
    """Name the file in the configuration of an engine that has not started yet."""
    transfer = config.kv_transfer_config
    transfer.kv_connector_extra_config = {**transfer.kv_connector_extra_config, REFUSAL_FILE: str(file)}


@contextmanager
def refusal_passed_on(config: "VllmConfig") -> Iterator[None]:
    """Write the message of a ConfigError into the file, if the configuration names one."""
    try:
        yield
    except ConfigError as error:
        file = config.kv_transfer_config.kv_connector_extra_config.get(REFUSAL_FILE)
        if file is not None:
            Path(file).write_text(error.message, encoding="utf-8")
        raise
