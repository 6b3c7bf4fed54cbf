"""The models that requests name: the engine's own, and its adapters."""

from typing import NamedTuple

from protocol.errors import UnknownModel
from protocol.generation import EngineInfo
from protocol.kv import with_adapter


class ServedModel(NamedTuple):
    """A model by its ``name``; ``digest`` is that of its adapter, and empty for the engine's own weights."""

    name: str
    digest: str = ""

    def namespace(self, tenant: str) -> str:
        """The namespace of its KV, in the tenant's."""
        return with_adapter(tenant, self.digest)


def served_models(engine: EngineInfo) -> tuple[ServedModel, ...]:
    """All models that an engine serves, its own first."""
    adapters = (ServedModel(name, adapter.digest) for name, adapter in engine.adapters.items())
    return (ServedModel(engine.model), *adapters)


def served_model(engine: EngineInfo, name: str | None) -> ServedModel:
    """The engine's model of this name; without a name, its own. Raises UnknownModel."""
    models = served_models(engine)
    if name is None:
        return models[0]
    found = next((model for model in models if model.name == name), None)
    if found is None:
        known = ", ".join(repr(model.name) for model in models)
        raise UnknownModel(f"The model {name!r} is not served; use {known}.", "model")
    return found
