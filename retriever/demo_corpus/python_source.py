"""Documents of functions and classes from Python source."""

import ast

from retriever.demo_corpus.stdlib_document import StdlibDocument, document


def function_document(node: ast.FunctionDef | ast.AsyncFunctionDef, module: str) -> StdlibDocument | None:
    """Create the document of a function: signature and docstring. None without a docstring."""
    docstring = ast.get_docstring(node)
    if not docstring:
        return None
    name = f"{module}.{node.name}"
    return document("function", name, module, f"{_signature(node, name)}\n\n{docstring}")


def class_document(node: ast.ClassDef, module: str) -> StdlibDocument | None:
    """Create the document of a class: constructor, docstring and method summaries. None without a docstring."""
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
    """Return the call syntax. ``bound`` omits the first parameter."""
    arguments = node.args
    if bound and (arguments.posonlyargs or arguments.args):
        first = "posonlyargs" if arguments.posonlyargs else "args"
        arguments = ast.arguments(**{field: getattr(arguments, field) for field in arguments._fields})
        setattr(arguments, first, getattr(arguments, first)[1:])
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    return f"{name}({ast.unparse(arguments)}){returns}"
