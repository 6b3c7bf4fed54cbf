"""Documents of the standard library's extension modules, which are written in C."""

import functools
import importlib
import importlib.util
import inspect
from collections.abc import Iterator, Mapping
from importlib.machinery import EXTENSION_SUFFIXES
from types import ModuleType

from retriever.demo_corpus.stdlib_document import Kind, StdlibDocument, document, module_document


@functools.cache
def is_extension_module(name: str) -> bool:
    """Return whether a top-level standard module exists and is built in or an extension module."""
    if "." in name:
        return False
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return False
    return spec is not None and (spec.origin == "built-in" or str(spec.origin).endswith(tuple(EXTENSION_SUFFIXES)))


def extension_members(source: str, module: str, names: Mapping[str, str] | None = None) -> Iterator[StdlibDocument]:
    """Yield the document of an extension module, then those of its classes and functions, as parts of ``module``.

    ``names`` selects members and maps them to their names in ``module``. None selects all public ones. Yields nothing
    if the import fails.
    """
    try:
        imported = importlib.import_module(source)
    except ImportError:
        return
    if names is None:
        names = {name: name for name in dir(imported) if not name.startswith("_")}
    members = [found for name, as_name in names.items() if (found := _member(imported, name, f"{module}.{as_name}"))]
    yield module_document(module, inspect.getdoc(imported), members)
    yield from members


def _member(imported: ModuleType, name: str, qualified: str) -> StdlibDocument | None:
    member = getattr(imported, name, None)
    docstring = inspect.getdoc(member) if inspect.isclass(member) or inspect.isroutine(member) else None
    if not docstring:
        return None
    module = qualified.rpartition(".")[0]
    kind: Kind = "class" if inspect.isclass(member) else "function"
    parts = [f"{'class ' if kind == 'class' else ''}{qualified}{_signature(member)}", docstring]
    if inspect.isclass(member):
        methods = [_method_line(name, method) for name, method in vars(member).items() if not name.startswith("_")]
        if any(methods):
            parts.append("Methods:\n" + "\n".join(line for line in methods if line))
    return document(kind, qualified, module, "\n\n".join(parts))


def _method_line(name: str, method: object) -> str | None:
    docstring = inspect.getdoc(method) if inspect.isroutine(method) else None
    return f"{name}{_signature(method)}: {docstring.splitlines()[0]}" if docstring else None


def _signature(member: object) -> str:
    """Return the parameters if the module exposes them. Many C functions only describe them in the docstring."""
    try:
        return str(inspect.signature(member)) if callable(member) else "()"
    except (ValueError, TypeError):
        return "(...)"
