"""Adapters (LoRA): low-rank changes of a model's weights, each served as a model of its own name."""

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from blake3 import blake3
from safetensors import SafetensorError, safe_open

from protocol.errors import ConfigError
from protocol.kv import ADAPTER_DIGEST_BYTES

ADAPTER_FILES = ("adapter_config.json", "adapter_model.safetensors")
_CONFIGURATION, _WEIGHTS = ADAPTER_FILES

_OPTION = "generator.adapters"
_PREFIX = "base_model.model."
_NUMBERED = "layers."
_PARTS = ((".lora_A.weight", ".lora_B.weight"), (".lora_embedding_A", ".lora_embedding_B"))
"""The two matrices of a layer, and of an embedding."""
_OF_THE_BASE = ("lm_head.base_layer.weight", "embed_tokens.base_layer.weight")
"""What PEFT writes beside an adapter of these layers, and vLLM leaves out."""
_FEATURES = (
    "use_rslora",
    "use_dora",
    "init_lora_weights",
    "rank_pattern",
    "alpha_pattern",
    "lora_bias",
    "alora_invocation_tokens",
    "layer_replication",
    "use_bdlora",
    "use_qalora",
)
_FLOATS = ("F64", "F32", "F16", "BF16")


class _Tensor(NamedTuple):
    shape: tuple[int, ...]
    dtype: str


class Adapter(NamedTuple):
    """An adapter in a ``folder`` of PEFT's layout, as ``name`` for users.

    ``rank`` is the largest of its layers'. ``features`` are the settings of PEFT that change how its weights are
    applied. ``digest`` identifies weights and settings, so KV that was computed with others under the same name is
    never found.
    """

    name: str
    folder: Path
    rank: int
    features: frozenset[str]
    digest: str

    def refused(self, why: str) -> ConfigError:
        """The error that says why it cannot be served."""
        return _refused(self.name, why)

    def is_unchanged(self) -> bool:
        """Whether its files are still those that were read."""
        try:
            return _digest_of(self.folder) == self.digest
        except OSError:
            return False


def read_adapter(name: str, folder: Path, model: Path) -> Adapter:
    """The adapter in a folder, for the model in another one.

    Raises ConfigError if it is not there, damaged, or made for a model with other layers.
    """
    try:
        for file in ADAPTER_FILES:
            if not (folder / file).is_file():
                raise _refused(name, f"{folder} has no {file}")
        tensors = dict(_tensors(folder / _WEIGHTS))
        described = json.loads((folder / _CONFIGURATION).read_bytes())
        digest = _digest_of(folder)
    except (OSError, ValueError, RecursionError, SafetensorError) as error:
        raise _refused(name, f"{folder} cannot be read: {error}") from error
    if not isinstance(described, dict) or described.get("peft_type", "LORA") != "LORA":
        raise _refused(name, f"{folder} is no LoRA adapter")
    ranks = _ranks(name, described)
    layers = _layers(name, tensors)
    for layer, (of, to) in layers.items():
        # The experts of a layer stand in one tensor.
        if of.shape[0] not in ranks and ".experts" not in layer:
            raise _refused(name, f"its layer {layer} has rank {of.shape[0]}, and its configuration {sorted(ranks)}")
        if to.shape[1] != of.shape[0]:
            raise _refused(name, f"the two parts of its layer {layer} have different ranks")
    _check_layers(name, {layer: (to.shape[0], of.shape[1]) for layer, (of, to) in layers.items()}, model)
    # PEFT writes that an adapter began as a plain one.
    plain = {"init_lora_weights": True}
    features = frozenset(name for name in _FEATURES if described.get(name) and described[name] != plain.get(name))
    return Adapter(name, folder, max(ranks), features, digest)


def _ranks(name: str, described: Mapping[str, Any]) -> set[int]:
    """The ranks that the configuration gives to layers."""
    pattern = described.get("rank_pattern") or {}
    ranks = [described.get("r"), *(pattern.values() if isinstance(pattern, dict) else (None,))]
    if not all(type(rank) is int and rank > 0 for rank in ranks):
        raise _refused(name, "its configuration has no rank above 0")
    return set(ranks)


def _layers(name: str, tensors: Mapping[str, _Tensor]) -> dict[str, tuple[_Tensor, _Tensor]]:
    """The layers that the adapter changes, by the model's name, with both parts of each change."""
    layers = {}
    for tensor in tensors:
        if tensor.endswith(_OF_THE_BASE):
            continue
        parts = next((parts for parts in _PARTS if tensor.endswith(parts)), None)
        if parts is None:
            # vLLM passes over it without a word.
            raise _refused(name, f"it has {tensor}, which is no part of LoRA")
        layer = tensor.removesuffix(parts[0]).removesuffix(parts[1])
        of, to = (tensors.get(layer + part, _Tensor((), "")) for part in parts)
        if len(of.shape) != 2 or len(to.shape) != 2:
            raise _refused(name, f"its layer {layer} lacks one of its two matrices")
        layers[layer.removeprefix(_PREFIX)] = of, to
    if not layers:
        raise _refused(name, "it has no weights")
    return layers


def _check_layers(name: str, layers: Mapping[str, tuple[int, int]], model: Path) -> None:
    """Compare the adapter's layers with those of the model: vLLM uses the part that fits, without a word.

    Of each layer, ``layers`` has the outputs and the inputs. Checkpoints differ in what stands before the number of a
    layer, and in the names of what has no number. Experts may have no tensors of their own there.
    """
    known = _layers_of_model(model)
    for layer, found in layers.items():
        shapes = known.get(_place(layer))
        if shapes is None and known and _NUMBERED in layer and ".experts" not in layer:
            raise _refused(name, f"it is for another model: this one has no layer {layer}")
        if shapes and found not in shapes and found[::-1] not in shapes:
            out, inputs = max(shapes)
            raise _refused(
                name,
                f"it is for another model: its layer {layer} is {found[0]} by {found[1]}, and that of this one "
                f"{out} by {inputs}",
            )


def _layers_of_model(folder: Path) -> dict[str, set[tuple[int, int]]]:
    """The layers of a checkpoint by place, with the shapes of weights that are not packed.

    There are none if the checkpoint cannot be read, which the engine reports.
    """
    layers: defaultdict[str, set[tuple[int, int]]] = defaultdict(set)
    for file in sorted(folder.glob("*.safetensors")):
        try:
            for tensor, (shape, dtype) in _tensors(file):
                layer, _, part = tensor.rpartition(".")
                shapes = layers[_place(layer)]
                if part == "weight" and dtype in _FLOATS and len(shape) == 2:
                    shapes.add((shape[0], shape[1]))
        except (OSError, SafetensorError):
            return {}
    return layers


def _place(layer: str) -> str:
    """A layer's name from the number of the model's layer on."""
    return layer.rpartition(_NUMBERED)[2]


def _digest_of(folder: Path) -> str:
    """The digest of an adapter's files as they are now. Raises OSError."""
    digests = [blake3().update_mmap(folder / file).digest() for file in ADAPTER_FILES]
    return blake3(b"".join(digests)).hexdigest(ADAPTER_DIGEST_BYTES)


def _tensors(file: Path) -> Iterator[tuple[str, _Tensor]]:
    with safe_open(file, framework="numpy") as tensors:
        for name in tensors.keys():  # noqa: SIM118  # not a mapping
            tensor = tensors.get_slice(name)
            yield name, _Tensor(tuple(tensor.get_shape()), tensor.get_dtype())


def _refused(name: str, why: str) -> ConfigError:
    return ConfigError(f"The adapter {name!r} cannot be served: {why}.", _OPTION)
