"""What the connector uses of vLLM's inside, as each supported release has it.

``names.json`` lists it. ``RELEASE.json`` has what a release makes of these names: a function's parameters, null for
anything else. Files of other releases than the installed one are read out of wheels, which needs neither a GPU nor an
installation:

    pip download --no-deps --only-binary :all: vllm==0.33.0
    python tests/generator/connector/vllm_surface/surface.py vllm-0.33.0-*.whl
"""

import ast
import json
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

FOLDER = Path(__file__).parent
BASE = "vllm/distributed/kv_transfer/kv_connector/v1/base.py"
CONTRACT = ("KVConnectorBase_V1", "SupportsHMA")
"""All methods of these classes are recorded: the connector overrides many of them."""

Parameters: TypeAlias = list[str] | None
Surface: TypeAlias = dict[str, dict[str, Parameters]]


def listed() -> dict[str, list[str]]:
    """The names that the connector uses, by vLLM's file."""
    names: dict[str, list[str]] = json.loads((FOLDER / "names.json").read_text())
    return names


def recorded() -> dict[str, Surface]:
    """What each recorded release has, by release."""
    return {path.stem: json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json")) if path.stem != "names"}


def surface_of(source: Callable[[str], str]) -> Surface:
    """What a release has of the listed names, and of the connector's contract. ``source`` reads one of its files."""
    found: Surface = {}
    for file, names in listed().items():
        known = dict(_names(ast.parse(source(file))))
        wanted = {*names, *(name for name in known if file == BASE and name.startswith(CONTRACT))}
        found[file] = {name: known[name] for name in sorted(wanted) if name in known}
    return found


def _names(module: ast.Module) -> Iterator[tuple[str, Parameters]]:
    """All names of a module and of its classes, with inherited ones of classes in the same module."""
    classes: dict[str, dict[str, Parameters]] = {}
    for node in ast.walk(module):
        if isinstance(node, ast.ClassDef):
            own = dict(_members(node))
            inherited = [classes[base.id] for base in node.bases if isinstance(base, ast.Name) and base.id in classes]
            classes[node.name] = {name: kind for members in (*inherited, own) for name, kind in members.items()}
            yield node.name, None
            yield from ((f"{node.name}.{name}", kind) for name, kind in classes[node.name].items())
    for node in module.body:
        if isinstance(node, ast.FunctionDef):
            yield node.name, _parameters(node)
            # What it sets on its arguments.
            yield from ((name, None) for name in _stored(node))


def _members(node: ast.ClassDef) -> Iterator[tuple[str, Parameters]]:
    for part in ast.walk(node):
        if isinstance(part, ast.FunctionDef):
            is_property = any(isinstance(kind, ast.Name) and "property" in kind.id for kind in part.decorator_list)
            yield part.name, None if is_property else _parameters(part)
        elif isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name):
            yield part.target.id, None
    yield from ((name, None) for name in _stored(node))


def _stored(node: ast.AST) -> Iterator[str]:
    """The attributes that are set within a function or class."""
    for part in ast.walk(node):
        if isinstance(part, ast.Attribute) and isinstance(part.ctx, ast.Store):
            yield part.attr
        elif isinstance(part, ast.Call) and getattr(part.func, "attr", "") == "register_buffer":
            yield from (name.value for name in part.args[:1] if isinstance(name, ast.Constant))


def _parameters(function: ast.FunctionDef) -> list[str]:
    given = function.args
    required = len(given.args) - len(given.defaults)
    names = [f"{one.arg}{'' if number < required else '?'}" for number, one in enumerate(given.args)]
    keywords = zip(given.kwonlyargs, given.kw_defaults, strict=True)
    names += [f"{one.arg}={'' if default is None else '?'}" for one, default in keywords]
    return [*names, *(["**"] if given.kwarg is not None else [])]


def main() -> None:
    """Record the releases of the wheels."""
    for wheel in map(Path, sys.argv[1:]):
        with zipfile.ZipFile(wheel) as opened:
            surface = surface_of(lambda file, opened=opened: opened.read(file).decode())
        release = wheel.name.split("-")[1]
        (FOLDER / f"{release}.json").write_text(json.dumps(surface, indent=1) + "\n")


if __name__ == "__main__":
    main()
