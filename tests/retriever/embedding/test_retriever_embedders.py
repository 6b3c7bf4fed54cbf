import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest
from varied import varied

from protocol.errors import ConfigError, InvalidRequest, Unavailable
from retriever.embedding.factory import build_embedder
from retriever.embedding.hashing import HashingEmbedder
from retriever.settings import HashingSettings, OpenAISettings, SentenceTransformerSettings

TEXTS = [
    "Paris is the capital and largest city of France.",
    "The mitochondrion produces most of a cell's chemical energy.",
    "Gradient descent minimises a function by following its slope downwards. " * 30,
    "x",
]


class Endpoint:
    """A local OpenAI-compatible endpoint that hashes words. It answers with the statuses ``failures`` first."""

    def __init__(self) -> None:
        self.failures: list[int] = []
        self.requests: list[dict] = []
        model = HashingEmbedder()
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                endpoint.requests.append(body)
                status = endpoint.failures.pop(0) if endpoint.failures else 200
                # Not normalized and out of order, as the API allows.
                vectors = 3 * model.embed_documents(body["input"])
                data = [{"object": "embedding", "index": i, "embedding": v.tolist()} for i, v in enumerate(vectors)]
                reply = {"object": "list", "model": body["model"], "data": data[::-1], "usage": {}}
                content = json.dumps(reply if status == 200 else {"error": {"message": "refused"}}).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(content)))
                self.send_header("retry-after-ms", "1")
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *args):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1"
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@contextmanager
def endpoint() -> Iterator[Endpoint]:
    server = Endpoint()
    try:
        yield server
    finally:
        server.close()


def openai(server: Endpoint, **changes) -> OpenAISettings:
    usual = {"model": "m", "base_url": server.url, "api_key": "key", "batch_size": 3}
    return varied(OpenAISettings, **{**usual, **changes})


@pytest.fixture(scope="module", params=["hashing", "openai", "minilm"])
def embedder(request):
    if request.param == "hashing":
        yield build_embedder(HashingSettings())
    elif request.param == "minilm":
        yield build_embedder(SentenceTransformerSettings())
    else:
        with endpoint() as server:
            yield build_embedder(openai(server))


def test_vectors_are_unit_float32_rows(embedder):
    vectors = embedder.embed_documents(TEXTS)
    assert vectors.shape == (len(TEXTS), embedder.dimension)
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    query = embedder.embed_query("What is the capital of France?")
    assert query.shape == (embedder.dimension,)
    assert query.dtype == np.float32


def test_no_texts_give_no_rows(embedder):
    assert embedder.embed_documents([]).shape == (0, embedder.dimension)


def test_vector_does_not_depend_on_the_batch(embedder):
    together = embedder.embed_documents(TEXTS)
    for text, row in zip(TEXTS, together, strict=True):
        assert float(embedder.embed_documents([text])[0] @ row) > 0.999


def test_query_is_nearest_to_its_answer(embedder):
    vectors = embedder.embed_documents(TEXTS)
    for question, answer in [("capital city of France", 0), ("energy of the cell", 1), ("descent along a gradient", 2)]:
        assert int(np.argmax(vectors @ embedder.embed_query(question))) == answer


def test_query_and_document_of_equal_text_have_equal_vectors(embedder):
    # In 8 bits, queries and documents round their activations in other types.
    least = 0.995 if embedder.name == "all-MiniLM-L6-v2" else 0.999
    for words in (1, 13, 14, 15, 40):
        text = "the largest city " * words
        assert float(embedder.embed_query(text) @ embedder.embed_documents([text])[0]) > least


def test_tokenizer_neither_cuts_nor_pads(embedder):
    long = "word " * (embedder.max_tokens + 100)
    assert len(embedder.tokenizer.encode(long, add_special_tokens=False).ids) >= embedder.max_tokens + 100
    short, longer = embedder.tokenizer.encode_batch(["word", "word word"], add_special_tokens=False)
    assert (len(short.ids), len(longer.ids)) == (1, 2)


def test_every_token_of_a_full_document_is_seen(embedder):
    text = "word " * (embedder.max_tokens - 1)
    vectors = embedder.embed_documents([text + "first", text + "zebra"])
    assert not np.allclose(vectors[0], vectors[1], atol=1e-4)


def test_long_query_is_truncated(embedder):
    vector = embedder.embed_query("capital " * (embedder.max_tokens + 1000))
    assert float(np.linalg.norm(vector)) == pytest.approx(1, abs=1e-5)


def test_threads_may_embed_at_once(embedder):
    expected = embedder.embed_documents(TEXTS)
    failed = []

    def work(texts):
        for _ in range(5):
            got = embedder.embed_documents(texts)
            if not np.allclose(got, expected[: len(texts)], atol=2e-2):
                failed.append(texts)

    threads = [threading.Thread(target=work, args=(TEXTS[:count],)) for count in (1, 2, 3, 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed


def test_fingerprint_depends_only_on_the_embedder():
    assert HashingEmbedder().fingerprint == HashingEmbedder().fingerprint
    assert HashingEmbedder().fingerprint != HashingEmbedder(varied(HashingSettings, dimension=64)).fingerprint


def test_missing_model_is_a_config_error(tmp_path):
    with pytest.raises(ConfigError):
        build_embedder(SentenceTransformerSettings(model=str(tmp_path)))


def test_endpoint_is_retried_after_transient_errors():
    with endpoint() as server:
        embedder = build_embedder(openai(server))
        server.failures = [503, 429]
        assert embedder.embed_documents(["a", "b"]).shape[0] == 2
        assert not server.failures


def test_endpoint_retries_are_bounded():
    with endpoint() as server:
        embedder = build_embedder(openai(server, max_retries=2, dimensions=256))
        server.failures = [503] * 10
        with pytest.raises(Unavailable):
            embedder.embed_query("a")
        assert len(server.requests) == 3


@pytest.mark.parametrize(("status", "error"), [(400, InvalidRequest), (422, InvalidRequest), (401, ConfigError)])
def test_endpoint_errors_map_to_error_types(status, error):
    with endpoint() as server:
        embedder = build_embedder(openai(server, dimensions=256))
        server.failures = [status]
        with pytest.raises(error):
            embedder.embed_query("a")
        assert len(server.requests) == 1


def test_unreachable_endpoint_is_unavailable():
    with endpoint() as server:
        gone = openai(server, max_retries=0)
    with pytest.raises(Unavailable):
        build_embedder(gone)
