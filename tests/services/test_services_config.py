"""Invalid configurations are refused with a clear message."""

import json

import pytest

from protocol.errors import ConfigError
from services.config import load_config
from services.dropped_options import DROPPED_OPTIONS


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RAGTREE_CONFIG", raising=False)
    return tmp_path


def test_environment_overrides_the_file(elsewhere, monkeypatch):
    (elsewhere / "ragtree.yaml").write_text("server: {port: 1111}\ngateway: {default_top_k: 7}\n")
    monkeypatch.setenv("RAGTREE_SERVER__PORT", "2222")
    config = load_config()
    assert (config.server.port, config.gateway.default_top_k) == (2222, 7)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("RAGTREE_GATEWAY__API_KEYS", "[{bad", "gateway"),
        ("RAGTREE_SERVER__PORT", "many", "server.port"),
        ("RAGTREE_CONTROLLER__POLICY", "BEST", "controller.policy"),
        ("RAGTREE_GATEWAY__API_KEYS", '[{"secret": "**********", "tenant": "acme"}]', "masks"),
        ("RAGTREE_RETRIEVER__EMBEDDER", '{"kind": "hashing", "retries": 1}', r"retriever\.embedder\.retries"),
        ("RAGTREE_CONFIG", "/no/such/file.yaml", "/no/such/file.yaml"),
    ],
)
def test_invalid_environment_values_are_reported(monkeypatch, name, value, said):
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=said):
        load_config()


@pytest.mark.parametrize(
    "content", [b"- a\n- list\n", b"just words", b"server: {port: [", b"caf\xe9: 1", b"sevrer: {port: 1}"]
)
def test_invalid_config_files_are_reported(elsewhere, content):
    (elsewhere / "ragtree.yaml").write_bytes(content)
    with pytest.raises(ConfigError) as refused:
        load_config()
    assert "ragtree.yaml" in refused.value.message or "sevrer" in refused.value.message


@pytest.mark.parametrize("name", ["dtype", "block_size", "tensor_parallel_size", "kv_transfer_config"])
def test_engine_arguments_that_change_kv_are_refused_for_kv_generators(monkeypatch, name):
    monkeypatch.setenv("RAGTREE_SERVING__KV_GENERATORS__ENGINE_ARGS", f'{{"enforce_eager": true, "{name}": 16}}')
    with pytest.raises(ConfigError, match=rf"serving\.kv_generators\.engine_args: .*{name} must be the same"):
        load_config()


def test_kv_generators_on_cpus_beside_gpus_need_neutral_pages(monkeypatch):
    monkeypatch.setenv("RAGTREE_SERVING__GENERATOR__NUM_GPUS", "1")
    load_config()
    monkeypatch.setenv("RAGTREE_SERVING__KV_GENERATORS__REPLICAS", "1")
    with pytest.raises(ConfigError, match=r"set generator\.kv\.page_layout to neutral"):
        load_config()
    with monkeypatch.context() as on_gpus:
        on_gpus.setenv("RAGTREE_SERVING__KV_GENERATORS__NUM_GPUS", "1")
        load_config()
    monkeypatch.setenv("RAGTREE_GENERATOR__KV__PAGE_LAYOUT", "neutral")
    assert load_config().generator.kv.page_layout == "neutral"


KINDS = {
    "retriever.embedder.dimension": "hashing",
    "retriever.embedder.max_retries": "openai",
    "retriever.reranker.batch_texts": "cross-encoder",
    "retriever.reranker.connections": "endpoint",
    "retriever.reranker.pause_s": "cross-encoder",
}


@pytest.mark.parametrize("name", DROPPED_OPTIONS)
def test_an_option_that_is_gone_is_refused_with_what_it_is_now(elsewhere, name):
    part, *rest, last = name.split(".")
    options: object = {last: 1, **({"kind": KINDS[name]} if name in KINDS else {})}
    for field in reversed(rest):
        options = {field: options}
    (elsewhere / "ragtree.yaml").write_text(json.dumps({part: options}))
    with pytest.raises(ConfigError, match=f"{name}: there is no such option any more: ") as refused:
        load_config()
    assert DROPPED_OPTIONS[name] in str(refused.value)
