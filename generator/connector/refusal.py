"""The connector's refusal of an engine, on its way to the process that starts the engine.

vLLM says to that process only that the engine has ended. A file tells why the connector has refused.
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


class UnsupportedByConnector(ConfigError, code="unsupported_by_connector"):
    """RAGTree's connector cannot keep KV of this model or with these options. vLLM alone may serve it."""


def name_refusal_file(config: "VllmConfig", file: Path) -> None:
    """Name the file in the configuration of an engine that has not started yet."""
    transfer = config.kv_transfer_config
    transfer.kv_connector_extra_config = {**transfer.kv_connector_extra_config, REFUSAL_FILE: str(file)}


@contextmanager
def refusal_passed_on(config: "VllmConfig") -> Iterator[None]:
    """Write the kind and the message of a ConfigError into the file, if the configuration names one."""
    try:
        yield
    except ConfigError as error:
        file = config.kv_transfer_config.kv_connector_extra_config.get(REFUSAL_FILE)
        if file is not None:
            Path(file).write_text(f"{error.code}\n{error.message}", encoding="utf-8")
        raise


def read_refusal(file: Path) -> ConfigError | None:
    """The refusal in the file, or None if the connector has refused nothing."""
    if not file.exists():
        return None
    code, _, message = file.read_text(encoding="utf-8").partition("\n")
    kind = UnsupportedByConnector if code == UnsupportedByConnector.code else ConfigError
    return kind(message, "generator")
