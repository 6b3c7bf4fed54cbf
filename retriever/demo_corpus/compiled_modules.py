"""The documents of the standard library's modules in C."""

import functools
import importlib
import importlib.util
import inspect
from collections.abc import Iterator, Mapping
from importlib.machinery import EXTENSION_SUFFIXES
from types import ModuleType

from retriever.demo_corpus.document import Kind, StdlibDocument, document, module_document


@functools.cache
def is_compiled(name: str) -> bool:
    """Whether a top-level module of the standard library is here, and in C."""
    if "." in name:
        return False
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return False
    return spec is not None and (spec.origin == "built-in" or str(spec.origin).endswith(tuple(EXTENSION_SUFFIXES)))


def compiled_members(source: str, module: str, names: Mapping[str, str] | None = None) -> Iterator[StdlibDocument]:
    """The document of a module in C, then those of its classes and functions, told as parts of ``module``.

    ``names`` chooses some and says what ``module`` calls them; None takes all public ones. Nothing if it does not
    import.
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
    """The parameters, where the module knows them; much of C says them in its docstring only."""
    try:
        return str(inspect.signature(member)) if callable(member) else "()"
    except (ValueError, TypeError):
        return "(...)"
