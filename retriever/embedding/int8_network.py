"""The network of a sentence-transformers model in 8-bit integers."""

import os
import threading
import warnings
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import openvino as ov
import torch
from openvino import opset13 as ops
from sentence_transformers import SentenceTransformer

from retriever.machine import EMBEDDING_NICENESS, lower_priority

_TRACED_TEXTS = [
    "Paris is the capital of France.",
    "This text is longer than the other, which is padded to its length.",
]
_COMPARED_TEXTS = [
    "A network that only works for the shapes that it was traced with is found out by a batch of other ones. " * 4,
    "Each river of Ruritania has two bridges.",
    "Bread",
]
_LEAST_SIMILARITY = 0.98
"""Cosine of a text's vectors in 8 bits and in float32. MiniLM has 0.998."""
_ACTIVATION_GROUP = 128
"""Activations of this many channels share a scale. Smaller groups are closer to float32, and below 64 slower."""
_MOST_STREAMS = 8


class ConversionError(Exception):
    """A model's network cannot be used in 8-bit integers."""


class Int8Network:
    """Computes the vectors of a model's texts from their tokens, on a CPU. Thread-safe.

    OpenVINO runs the network as torch traces it. The weights of linear layers have 8 bits and a scale for each output
    channel. Their inputs are rounded to 8 bits at run time (dynamic quantization). All else keeps its type.

    ``workers`` compute documents, a batch each, at the lowest priority. Queries are computed beside them by a second
    copy.

    Raises ConversionError if the model takes more than tokens, if its network cannot be traced or run, or if its
    vectors change too much.
    """

    def __init__(self, model: SentenceTransformer) -> None:
        sample = model.preprocess(_TRACED_TEXTS)
        _check_inputs(model, set(sample))
        self._inputs = [name for name, value in sample.items() if isinstance(value, torch.Tensor)]
        network = _traced(_Positional(model, self._inputs), [sample[name] for name in self._inputs])
        _round_weights(network)
        cores = os.cpu_count() or 1
        streams = min(cores, _MOST_STREAMS)
        settings = {
            "DYNAMIC_QUANTIZATION_GROUP_SIZE": _ACTIVATION_GROUP,
            "INFERENCE_NUM_THREADS": cores,
            "ENABLE_CPU_PINNING": False,
        }
        core = ov.Core()
        self.workers = ThreadPoolExecutor(streams, "retriever-embed", lower_priority, (EMBEDDING_NICENESS,))
        self._requests = threading.local()
        try:
            # The threads that compute inherit the priority of the thread that compiles.
            documents = self.workers.submit(
                core.compile_model, network, "CPU", {**settings, "NUM_STREAMS": streams}
            ).result()
            # A query has so few tokens that conversions to bfloat16 take longer than they save.
            queries = core.compile_model(
                network, "CPU", {**settings, "NUM_STREAMS": cores, "INFERENCE_PRECISION_HINT": "f32"}
            )
            self._compiled = {"document": documents, "query": queries}
            similarity = self._similarity(model)
        except RuntimeError as error:
            raise ConversionError(f"its network cannot run: {error}") from error
        if not similarity >= _LEAST_SIMILARITY:
            raise ConversionError(f"in 8 bits, the vectors of its texts change (cosine {similarity:.3f})")

    def forward(self, features: Mapping[str, Any], task: str | None = None, **_: object) -> dict[str, torch.Tensor]:
        """Return the vectors of a batch, [texts, dimension], instead of the model's own ``forward``.

        ``features`` holds the tokens of the texts, [texts, tokens].
        """
        role = "query" if task == "query" else "document"
        request = getattr(self._requests, role, None)
        if request is None:
            request = self._compiled[role].create_infer_request()
            setattr(self._requests, role, request)
        (vectors,) = request.infer([features[name].numpy() for name in self._inputs]).values()
        # The request owns the array, and its next batch overwrites it.
        return {"sentence_embedding": torch.from_numpy(vectors.copy())}

    def _similarity(self, model: SentenceTransformer) -> float:
        """The least cosine of a text's vectors in 8 bits and in those of the model."""
        features = model.preprocess(_COMPARED_TEXTS)
        with torch.inference_mode():
            expected = model(dict(features))["sentence_embedding"]
        return min(
            torch.nn.functional.cosine_similarity(expected, self.forward(features, task)["sentence_embedding"])
            .min()
            .item()
            for task in ("query", "document")
        )


def _check_inputs(model: SentenceTransformer, names: set[str]) -> None:
    if model.get_model_kwargs():
        raise ConversionError("its network is not the same for queries and documents")
    if any(getattr(module, "include_prompt", True) is False for module in model):
        raise ConversionError("its vectors leave out the tokens of the prompt")
    # Nothing else uses the prompt's length.
    names = names | {"prompt_length"}
    for prompt in model.prompts.values():
        if other := set(model.preprocess(_TRACED_TEXTS, prompt=prompt)) - names:
            raise ConversionError(f"its network takes {', '.join(sorted(other))} besides tokens")


class _Positional(torch.nn.Module):
    """A model whose inputs have positions instead of names, which tracing requires."""

    def __init__(self, model: SentenceTransformer, inputs: list[str]) -> None:
        super().__init__()
        self._model = model
        self._names = inputs

    def forward(self, *tensors: torch.Tensor) -> torch.Tensor:
        """Return the vectors, [texts, dimension]."""
        features: dict[str, Any] = dict(zip(self._names, tensors, strict=True))
        vectors: torch.Tensor = self._model(features)["sentence_embedding"]
        return vectors


def _traced(network: torch.nn.Module, inputs: list[torch.Tensor]) -> ov.Model:
    try:
        # Tracing warns of each branch that depends on a tensor's shape.
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            return ov.convert_model(network, example_input=tuple(inputs))
    except Exception as error:
        # A model's own code may raise anything while it is traced.
        raise ConversionError(f"its network cannot be traced: {error}") from error


def _round_weights(network: ov.Model) -> None:
    """Give each linear layer weights of 8 bits and a scale for each output channel."""
    for layer in network.get_ordered_ops():
        if layer.get_type_name() != "MatMul":
            continue
        weights = layer.input_value(1).get_node()
        if weights.get_type_name() != "Constant" or len(weights.shape) != 2:
            continue
        values = np.asarray(weights.data, np.float32)
        inputs = 1 if layer.get_attributes()["transpose_b"] else 0
        scales = np.maximum(np.abs(values).max(axis=inputs, keepdims=True) / 127, np.finfo(np.float32).tiny)
        rounded = ops.constant(np.rint(values / scales).astype(np.int8))
        restored = ops.multiply(ops.convert(rounded, "f32"), ops.constant(scales))
        layer.input(1).replace_source_output(restored.output(0))
