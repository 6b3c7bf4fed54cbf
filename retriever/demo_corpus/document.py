"""The documents of the standard library's corpus, and how source makes them."""

import ast
from collections.abc import Sequence
from typing import Literal

import msgspec

from protocol.filters import Attributes

Kind = Literal["module", "class", "function"]


class StdlibDocument(msgspec.Struct, frozen=True):
    """A piece of the standard library's own documentation; encoded as JSON it is a line of a batch."""

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
    """A document named by its qualified name."""
    filename = module.replace(".", "/") + ".py"
    return StdlibDocument(name, f"{kind} {name}", text, filename, {"kind": kind, "module": module})


def module_document(name: str, docstring: str | None, members: Sequence[StdlibDocument]) -> StdlibDocument:
    """A module: what it says of itself, and what it holds."""
    parts = [docstring] if docstring else [f"The module {name} of Python's standard library."]
    for kind, plural in (("class", "Classes"), ("function", "Functions")):
        names = [member.id.rpartition(".")[2] for member in members if member.kind == kind]
        if names:
            parts.append(f"{plural} of {name}: {', '.join(names)}.")
    return document("module", name, name, "\n\n".join(parts))


def function_document(node: ast.FunctionDef | ast.AsyncFunctionDef, module: str) -> StdlibDocument | None:
    """A function: how it is called and what it says of itself; None if it says nothing."""
    docstring = ast.get_docstring(node)
    if not docstring:
        return None
    name = f"{module}.{node.name}"
    return document("function", name, module, f"{_signature(node, name)}\n\n{docstring}")


def class_document(node: ast.ClassDef, module: str) -> StdlibDocument | None:
    """A class: how it is made, what it says of itself, and what its methods do; None if it says nothing."""
    docstring = ast.get_docstring(node)
    if not docstring:
        return None
    name = f"{module}.{node.name}"
    methods = [child for child in node.body if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)]
    makers = [_signature(method, name, bound=True) for method in methods if method.name in ("__init__", "__new__")]
    made = makers[0] if makers else name
    parts = [f"class {made}", docstring]
    described = [line for line in (_method_line(method) for method in methods) if line]
    if described:
        parts.append("Methods:\n" + "\n".join(described))
    return document("class", name, module, "\n\n".join(parts))


def _method_line(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str | None:
    docstring = ast.get_docstring(node)
    if not docstring or node.name.startswith("_"):
        return None
    static = any(isinstance(mark, ast.Name) and mark.id == "staticmethod" for mark in node.decorator_list)
    return f"{_signature(node, node.name, bound=not static)}: {docstring.splitlines()[0]}"


def _signature(node: ast.FunctionDef | ast.AsyncFunctionDef, name: str, *, bound: bool = False) -> str:
    """The call as one writes it; ``bound`` leaves the first parameter out, which is the object itself."""
    arguments = node.args
    if bound and (arguments.posonlyargs or arguments.args):
        first = "posonlyargs" if arguments.posonlyargs else "args"
        arguments = ast.arguments(**{field: getattr(arguments, field) for field in arguments._fields})
        setattr(arguments, first, getattr(arguments, first)[1:])
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    return f"{name}({ast.unparse(arguments)}){returns}"
