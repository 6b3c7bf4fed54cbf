"""Documents of modules, classes and functions: from Python source, or from modules that are written in C."""

import ast
import functools
import importlib
import importlib.util
import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.machinery import EXTENSION_SUFFIXES
from types import ModuleType
from typing import Literal

import msgspec

from protocol.filters import Attributes

Kind = Literal["module", "class", "function"]


class StdlibDocument(msgspec.Struct, frozen=True):
    """A piece of the standard library's own documentation. Its JSON encoding is a line of a batch."""

    id: str
    title: str
    text: str
    filename: str
    attributes: Attributes

    @property
    def kind(self) -> str:
        """Whether it describes a module, a class or a function."""
        return str(self.attributes["kind"])


def document(kind: Kind, name: str, module: str, text: str) -> StdlibDocument:
    """Create a document whose id is the qualified name."""
    filename = module.replace(".", "/") + ".py"
    return StdlibDocument(name, f"{kind} {name}", text, filename, {"kind": kind, "module": module})


def module_document(name: str, docstring: str | None, members: Sequence[StdlibDocument]) -> StdlibDocument:
    """Create the document of a module: its docstring and its members."""
    parts = [docstring] if docstring else [f"The module {name} of Python's standard library."]
    for kind, plural in (("class", "Classes"), ("function", "Functions")):
        names = [member.id.rpartition(".")[2] for member in members if member.kind == kind]
        if names:
            parts.append(f"{plural} of {name}: {', '.join(names)}.")
    return document("module", name, name, "\n\n".join(parts))


def function_document(node: ast.FunctionDef | ast.AsyncFunctionDef, module: str) -> StdlibDocument | None:
    """Create the document of a function: signature and docstring. None without a docstring."""
    name = f"{module}.{node.name}"
    return _described("function", name, _signature(node, name), ast.get_docstring(node))


def class_document(node: ast.ClassDef, module: str) -> StdlibDocument | None:
    """Create the document of a class: constructor, docstring and method summaries. None without a docstring."""
    name = f"{module}.{node.name}"
    methods = [child for child in node.body if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)]
    makers = [_signature(method, name, bound=True) for method in methods if method.name in ("__init__", "__new__")]
    return _described("class", name, makers[0] if makers else name, ast.get_docstring(node), map(_method_line, methods))


def _described(
    kind: Kind, name: str, call: str, docstring: str | None, methods: Iterable[str | None] = ()
) -> StdlibDocument | None:
    if not docstring:
        return None
    parts = [f"class {call}" if kind == "class" else call, docstring]
    if lines := [line for line in methods if line]:
        parts.append("Methods:\n" + "\n".join(lines))
    return document(kind, name, name.rpartition(".")[0], "\n\n".join(parts))


def _method_line(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str | None:
    docstring = ast.get_docstring(node)
    if not docstring or node.name.startswith("_"):
        return None
    static = any(isinstance(mark, ast.Name) and mark.id == "staticmethod" for mark in node.decorator_list)
    return f"{_signature(node, node.name, bound=not static)}: {docstring.splitlines()[0]}"


def _signature(node: ast.FunctionDef | ast.AsyncFunctionDef, name: str, *, bound: bool = False) -> str:
    """Return the call syntax. ``bound`` omits the first parameter."""
    arguments = node.args
    if bound and (arguments.posonlyargs or arguments.args):
        first = "posonlyargs" if arguments.posonlyargs else "args"
        arguments = ast.arguments(**{field: getattr(arguments, field) for field in arguments._fields})
        setattr(arguments, first, getattr(arguments, first)[1:])
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    return f"{name}({ast.unparse(arguments)}){returns}"


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
    call = f"{qualified}{_parameters(member)}"
    if inspect.isclass(member):
        methods = (_method_summary(name, method) for name, method in vars(member).items() if not name.startswith("_"))
        return _described("class", qualified, call, inspect.getdoc(member), methods)
    return _described("function", qualified, call, inspect.getdoc(member)) if inspect.isroutine(member) else None


def _method_summary(name: str, method: object) -> str | None:
    docstring = inspect.getdoc(method) if inspect.isroutine(method) else None
    return f"{name}{_parameters(method)}: {docstring.splitlines()[0]}" if docstring else None


def _parameters(member: object) -> str:
    """Return the parameters if the module exposes them. Many C functions only describe them in the docstring."""
    try:
        return str(inspect.signature(member)) if callable(member) else "()"
    except (ValueError, TypeError):
        return "(...)"
