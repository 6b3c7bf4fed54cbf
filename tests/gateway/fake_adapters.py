"""Adapters of a fake controller."""

from protocol.errors import Conflict, InvalidRequest, UnknownModel
from protocol.generation import ServedAdapter

FOUND = "0c" * 16
"""The digest of every adapter that is loaded."""


class FakeAdapters:
    """Loads adapters from any folder but ``/nowhere``, and unloads them."""

    def __init__(self) -> None:
        self.adapters: dict[str, ServedAdapter] = {}

    async def load_adapter(self, name: str, source: str) -> str:
        if source == "/nowhere":
            raise InvalidRequest(f"The adapter {name!r} cannot be served: {source} has no files.", "source")
        self.adapters[name] = ServedAdapter(FOUND, source)
        return FOUND

    async def unload_adapter(self, name: str) -> None:
        if name not in self.adapters:
            raise UnknownModel(f"No adapter {name!r} is loaded.", "name")
        if self.adapters[name].source is None:
            raise Conflict(f"The adapter {name!r} is one of generator.adapters: remove it there.", "name")
        del self.adapters[name]

    async def served_adapters(self) -> dict[str, ServedAdapter]:
        return self.adapters
