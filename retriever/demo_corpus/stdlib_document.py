"""A document of the demo corpus."""

from collections.abc import Sequence
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
