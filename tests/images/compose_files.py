"""Reads the compose files as compose does: fills in variables and merges overlays."""

import re
from typing import Any

import yaml
from compose_spec import PyCompose
from dockerfiles import ROOT

BASE, GPU, OBSERVABILITY = "docker-compose.yml", "docker-compose.gpu.yml", "docker-compose.observability.yml"
FIRST, SECOND = "docker-compose.first-machine.yml", "docker-compose.second-machine.yml"
COMBINATIONS = [(BASE,), (BASE, GPU), (BASE, OBSERVABILITY), (BASE, GPU, OBSERVABILITY)]

_VARIABLE = re.compile(r"(?<!\$)\$\{(\w+)(?::-([^}]*)|:\?[^}]*)?\}")
_REPLACED = {"command", "entrypoint", "test"}
"""Keys of lists that an overlay replaces. It extends all other lists."""


def text(file: str, environment: dict[str, str] | None = None) -> str:
    """Return a file with its variables filled in."""
    given = environment or {}
    raw = "\n".join(line for line in (ROOT / file).read_text().splitlines() if not line.lstrip().startswith("#"))
    return _VARIABLE.sub(lambda found: given.get(found[1]) or found[2] or "", raw)


def defaults(file: str) -> dict[str, str | None]:
    """Return a file's variables with their defaults; None for variables that compose passes through if set."""
    found: dict[str, str | None] = {
        variable: value for variable, value in _VARIABLE.findall((ROOT / file).read_text()) if variable != "VARIABLE"
    }
    for service in yaml.safe_load(text(file))["services"].values():
        found |= {name: None for name, value in service.get("environment", {}).items() if value is None}
    return found


def merged(files: tuple[str, ...], environment: dict[str, str] | None = None) -> dict[str, Any]:
    """Merge the files into one document; later ones override earlier ones."""
    document: dict[str, Any] = {}
    for file in files:
        document = _laid_over(document, yaml.safe_load(text(file, environment)))
    return document


def parsed(document: dict[str, Any]) -> PyCompose:
    """Parse the document by the specification. Raises ValueError if it does not conform."""
    compose = PyCompose.from_yaml(yaml.safe_dump(document))
    compose.validate()
    compose.to_spec()
    return compose


def _laid_over(below: Any, above: Any, key: str = "") -> Any:
    if isinstance(below, dict) and isinstance(above, dict):
        return below | {name: _laid_over(below.get(name), value, name) for name, value in above.items()}
    if isinstance(below, list) and isinstance(above, list) and key not in _REPLACED:
        return [*below, *(item for item in above if item not in below)]
    return above
