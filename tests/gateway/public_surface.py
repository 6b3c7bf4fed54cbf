"""The public surface: HTTP API, command line, configuration and metrics, without descriptions.

``public_surface.json`` records it. After a deliberate change, record it again:
``PYTHONPATH=.:tests:tests/gateway python tests/gateway/public_surface.py``.
"""

import asyncio
import json
from pathlib import Path
from typing import Any

import typer
from exposed import gateways_metrics
from gateway_fakes import Stack
from pydantic import BaseModel
from typer.core import TyperGroup

from gateway.app import create_app
from gateway.settings import ApiKey, GatewaySettings
from services.cli.app import app as command_line
from services.config import Config

RECORD = Path(__file__).with_name("public_surface.json")
WORDING = {"description", "summary", "title", "version"}


def without_wording(node: Any) -> Any:
    """Return a JSON value without the texts that OpenAPI carries for readers."""
    if isinstance(node, dict):
        return {key: without_wording(value) for key, value in sorted(node.items()) if not is_wording(key, value)}
    return [without_wording(item) for item in node] if isinstance(node, list) else node


def is_wording(key: str, value: Any) -> bool:
    return key in WORDING and isinstance(value, str)


def openapi() -> Any:
    settings = GatewaySettings(api_keys=(ApiKey(secret="key", tenant="tenant"),), admin_key="admin")
    return without_wording(create_app(Stack(), settings).openapi())


def commands(command: Any, name: str = "ragtree") -> dict[str, dict[str, Any]]:
    """Return every command with its parameters: their spellings, types, defaults and whether they are required."""
    if isinstance(command, TyperGroup):
        found: dict[str, dict[str, Any]] = {}
        for sub, inner in command.commands.items():
            found |= commands(inner, f"{name} {sub}")
        return found
    return {
        name: {
            parameter.name or "": {
                "spellings": sorted([*parameter.opts, *parameter.secondary_opts]),
                "type": getattr(parameter.type_descriptor.annotation, "__name__", None)
                or str(parameter.type_descriptor.annotation),
                "default": repr(parameter.default),
                "required": parameter.required,
            }
            for parameter in command.params
        }
    }


def options(model: BaseModel, prefix: str = "") -> dict[str, str]:
    """Return every configuration key with its default. Paths depend on the machine."""
    found: dict[str, str] = {}
    for name in type(model).model_fields:
        value = getattr(model, name)
        if isinstance(value, BaseModel):
            found |= options(value, f"{prefix}{name}.")
        else:
            found[f"{prefix}{name}"] = "a path" if isinstance(value, Path) else repr(value)
    return found


def metrics() -> dict[str, list[str]]:
    exposed = asyncio.run(gateways_metrics())
    return {name: [metric.type, *sorted(metric.labels)] for name, metric in sorted(exposed.items())}


def surface() -> dict[str, Any]:
    return {
        "openapi": openapi(),
        "commands": commands(typer.main.get_command(command_line)),
        "options": options(Config()),
        "metrics": metrics(),
    }


if __name__ == "__main__":
    RECORD.write_text(json.dumps(surface(), indent=1, sort_keys=True) + "\n")
