"""No import circle between the modules of a package.

Every import statement counts: at the top of a module, inside a function, and under ``TYPE_CHECKING``. Two modules that
need each other's types are coupled even if Python can load them. A package's ``__init__`` counts only where it is
imported by name, not as the parent of each of its modules.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from packages import PACKAGES

Graph = dict[str, set[str]]


def modules_of(package: str) -> dict[str, Path]:
    folder = PACKAGES[package]
    files = folder.rglob("*.py")
    return {
        ".".join(file.relative_to(folder.parent).with_suffix("").parts).removesuffix(".__init__"): file
        for file in files
    }


def imported(tree: ast.AST) -> Iterator[tuple[str, str | None]]:
    """Yield each imported module, with the name imported from it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, None
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            for alias in node.names:
                yield node.module or "", alias.name


def graph_of(modules: dict[str, Path]) -> Graph:
    graph: Graph = {}
    for module, file in modules.items():
        edges = set()
        for source, name in imported(ast.parse(file.read_text(encoding="utf-8"))):
            submodule = f"{source}.{name}"
            edges.add(submodule if submodule in modules else source)
        graph[module] = (edges & modules.keys()) - {module}
    return graph


def reachable(graph: Graph, start: str) -> set[str]:
    seen: set[str] = set()
    waiting = [start]
    while waiting:
        for module in graph[waiting.pop()] - seen:
            seen.add(module)
            waiting.append(module)
    return seen


def circles(graph: Graph) -> set[frozenset[str]]:
    """Return the strongly connected components of more than one module."""
    reach = {module: reachable(graph, module) for module in graph}
    return {
        frozenset({module} | {other for other in reach[module] if module in reach[other]})
        for module in graph
        if module in reach[module]
    }


def test_circles_are_found():
    graph = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": set(), "e": {"a"}}
    assert circles(graph) == {frozenset("abc")}


@pytest.mark.parametrize("package", PACKAGES)
def test_no_modules_import_each_other(package):
    assert circles(graph_of(modules_of(package))) == set()
