"""Replies of the administration of adapters."""

from typing import Literal

import msgspec

from protocol.generation import EngineInfo


class Adapter(msgspec.Struct, frozen=True, kw_only=True):
    """An adapter that is served as the model ``name``. ``digest`` identifies its weights.

    ``source`` is the folder or Hugging Face id of one that was loaded while the stack ran; null for a configured one.
    """

    object: Literal["adapter"] = "adapter"
    name: str
    digest: str
    source: str | None

    @classmethod
    def of(cls, engine: EngineInfo) -> "tuple[Adapter, ...]":
        """Those that an engine serves."""
        return tuple(
            cls(name=name, digest=adapter.digest, source=adapter.source) for name, adapter in engine.adapters.items()
        )


class AdapterList(msgspec.Struct, frozen=True, kw_only=True):
    """All adapters."""

    object: Literal["list"] = "list"
    data: tuple[Adapter, ...]


class AdapterUnloaded(msgspec.Struct, frozen=True, kw_only=True):
    """An adapter that is served no more."""

    object: Literal["adapter.unloaded"] = "adapter.unloaded"
    name: str
