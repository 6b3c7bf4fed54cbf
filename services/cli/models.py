"""``ragtree models``: models to serve, and which of them fit this machine."""

from typing import Annotated

import msgspec
import typer
from rich.table import Table

from generator.catalogue import CATALOGUE
from generator.device import Device, find_device
from generator.memory_fit import Fit, memory_fit
from generator.model_facts import ModelFacts, facts_of_folder
from generator.models import SHIPPED, ModelStore
from services.cli.connection import JsonOption
from services.cli.output import print_json, results, tables
from services.config import Config, load_config

_GIB = 1 << 30
_FREE = {"Apache-2.0", "MIT"}
"""Licences that nobody has to accept before a download."""
_FITS = {Fit.YES: "fits", Fit.TIGHT: "leaves hardly any room for documents in", Fit.NO: "is too large for"}
_COLOURS = {Fit.YES: "green", Fit.TIGHT: "yellow", Fit.NO: "dim"}


class ListedModel(msgspec.Struct, frozen=True):
    """A model on this machine. Bytes are those of the dtype that the configured engine would use here.

    ``keeps`` says in words what its layers keep of a prompt. ``reuse`` is where a document's KV serves.
    """

    name: str
    parameters: int
    weight_bytes: int
    kv_bytes_per_token: int
    bytes_per_state: int
    keeps: str
    reuse: str
    context: int
    licence: str
    fits: Fit
    is_local: bool


class ModelList(msgspec.Struct, frozen=True):
    """Models by size, and the device whose memory in bytes they have to fit."""

    device: str
    memory: int
    models: tuple[ListedModel, ...]


def models(
    fitting: Annotated[bool, typer.Option("--fitting", help="Only models that fit this machine.")] = False,
    as_json: JsonOption = False,
) -> None:
    """List well-known models and those on this machine: what they keep and reuse, licence, and whether they fit."""
    config = load_config()
    device = find_device()
    listed = _listed(config, device)
    if fitting:
        listed = [model for model in listed if model.fits is not Fit.NO]
    if as_json:
        print_json(ModelList(device.name, device.memory, tuple(listed)))
        return
    table = Table(box=None, pad_edge=False)
    table.add_column("model", no_wrap=True)
    for column in ("size", "KV a token", "a state", "context"):
        table.add_column(column, justify="right", no_wrap=True)
    for column in ("reuse", "licence", "here", "fits"):
        table.add_column(column, no_wrap=True)
    for model in listed:
        table.add_row(
            model.name,
            f"{model.weight_bytes / _GIB:.1f} GiB",
            f"{model.kv_bytes_per_token / 1024:.0f} KiB",
            f"{model.bytes_per_state / (1 << 20):.1f} MiB" if model.bytes_per_state else "",
            f"{model.context:,}",
            model.reuse,
            model.licence or "unknown",
            "yes" if model.is_local else "",
            f"[{_COLOURS[model.fits]}]{model.fits}[/]",
        )
    results.print(f"{device.name}, {device.memory / _GIB:.1f} GiB of memory")
    tables.print(table)
    results.print("Start one with `ragtree up --model NAME`.")


def advice(config: Config) -> str | None:
    """Return a sentence on a better model if the shipped one runs on a GPU; None if there is nothing to say."""
    if config.generator.engine != "vllm" or config.generator.model not in SHIPPED:
        return None
    device = find_device()
    if not device.is_gpu:
        return None
    fit = memory_fit(device, config.generator)
    free = [model for model in CATALOGUE if model.licence in _FREE and model.name not in SHIPPED and model.composable]
    fitting = [model for model in free if fit.of(model) is Fit.YES]
    if not fitting:
        return None
    largest = max(fitting, key=lambda model: model.parameters)
    return f"{device.name} has room for a larger model: `ragtree up --model {largest.name}` ({largest.licence})"


def described(config: Config, model: ModelFacts) -> str:
    """A sentence on a model, before it is loaded: what it keeps of a prompt, where that serves, and whether it fits."""
    device = find_device()
    fit = memory_fit(device, config.generator)
    kept = f"{model.kv_bytes(fit.value_bytes) / 1024:.0f} KiB a token"
    if model.state_layers:
        state = model.state_bytes(fit.value_bytes)
        kept += f", {state / (1 << 20):.1f} MiB a state" if state else ", states of unknown size"
    needs = f"{model.weight_bytes(fit.value_bytes) / _GIB:.1f} GiB of weights"
    fits = _FITS[fit.of(model)]
    serves = "after the same documents, because of the adapters" if config.generator.serves_adapters else _reuse(model)
    return (
        f"It keeps {model.keeps} ({kept}). A document's KV serves {serves}. With {needs} it {fits} "
        f"{device.name}, {device.memory / _GIB:.1f} GiB"
    )


def _reuse(model: ModelFacts) -> str:
    """Where a document's KV serves."""
    return "anywhere" if model.composable else "after the same documents"


def _listed(config: Config, device: Device) -> list[ListedModel]:
    fit = memory_fit(device, config.generator)
    store = ModelStore(config.cache_dir)
    shipped = {model.folder_name for model in SHIPPED.values()}
    others = [folder for folder in store.converted() if folder.name not in shipped]
    local = [facts for folder in others if (facts := facts_of_folder(folder, str(folder))) is not None]

    def listed(model: ModelFacts, *, is_local: bool) -> ListedModel:
        return ListedModel(
            name=model.name,
            parameters=model.parameters,
            weight_bytes=model.weight_bytes(fit.value_bytes),
            kv_bytes_per_token=model.kv_bytes(fit.value_bytes),
            bytes_per_state=model.state_bytes(fit.value_bytes),
            keeps=model.keeps,
            reuse=_reuse(model),
            context=model.context,
            licence=model.licence,
            fits=fit.of(model),
            is_local=is_local,
        )

    known = [listed(model, is_local=store.has(model.name)) for model in CATALOGUE]
    return sorted(known + [listed(model, is_local=True) for model in local], key=lambda model: model.parameters)
