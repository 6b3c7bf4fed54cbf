"""The demo corpus: one document per module, class and function of Python's standard library.

Python modules are parsed, not imported, because importing may print, open a browser or take seconds. Extension modules
have no source to parse. They are imported and inspected, which has no side effects.
"""

import ast
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from retriever.demo_corpus.stdlib_document import (
    StdlibDocument,
    class_document,
    extension_members,
    function_document,
    is_extension_module,
    module_document,
)

_SKIPPED = {
    *("antigravity", "this", "idlelib", "lib2to3", "distutils", "test", "tests", "turtledemo", "ensurepip"),
    *("__main__", "pydoc_data"),
    # os re-exports the contents of these modules.
    *("posix", "nt"),
}


def stdlib_documents() -> Iterator[StdlibDocument]:
    """Yield each document once, by module: all public modules, and public names with a docstring."""
    root = Path(sysconfig.get_path("stdlib"))
    seen: set[str] = set()
    for name in sorted(sys.stdlib_module_names):
        if not _public(name):
            continue
        for document in _top_level(root, name):
            if document.id not in seen:
                seen.add(document.id)
                yield document


def _top_level(root: Path, name: str) -> Iterator[StdlibDocument]:
    if (root / name / "__init__.py").is_file():
        yield from _package(root / name, name)
    elif (root / f"{name}.py").is_file():
        yield from _module(root / f"{name}.py", name)
    elif is_extension_module(name):
        yield from extension_members(name, name)


def _package(folder: Path, name: str) -> Iterator[StdlibDocument]:
    yield from _module(folder / "__init__.py", name)
    for path in sorted(folder.iterdir()):
        if path.suffix == ".py" and _public(path.stem):
            yield from _module(path, f"{name}.{path.stem}")
        elif (path / "__init__.py").is_file() and _public(path.name):
            yield from _package(path, f"{name}.{path.name}")


def _module(path: Path, name: str) -> Iterator[StdlibDocument]:
    try:
        tree = ast.parse(path.read_bytes())
    except SyntaxError:
        # Some distributions contain files for other Python versions.
        return
    members = list(_members(tree, name))
    yield module_document(name, ast.get_docstring(tree), members)
    yield from members


def _members(tree: ast.Module, module: str) -> Iterator[StdlibDocument]:
    """Yield the documents of classes and functions, including those imported from an extension module."""
    seen: set[str] = set()
    found: list[StdlibDocument | None]
    for node in _statements(tree.body):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                found = [function_document(node, module)]
            case ast.ClassDef():
                found = [class_document(node, module)]
            case ast.ImportFrom(module=str(source), names=names) if node.level == 0 and is_extension_module(source):
                wanted = {alias.name: alias.asname or alias.name for alias in names}
                members = extension_members(source, module, None if "*" in wanted else wanted)
                found = [member for member in members if member.kind != "module"]
            case _:
                continue
        for document in found:
            if document is not None and document.id not in seen and _public(document.id.rpartition(".")[2]):
                # A Python definition precedes the C import that replaces it, and has the same docstring.
                seen.add(document.id)
                yield document


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements of a module, including those in conditional blocks."""
    for node in body:
        match node:
            case ast.If() | ast.Try():
                yield from _statements(node.body)
                for handler in getattr(node, "handlers", []):
                    yield from _statements(handler.body)
                yield from _statements(node.orelse)
            case _:
                yield node


def _public(name: str) -> bool:
    return not name.startswith("_") and name not in _SKIPPED
