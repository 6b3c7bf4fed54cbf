"""``ragtree models``, and the model that ``ragtree up`` starts with."""

import json

import pytest
from typer.testing import CliRunner

from generator.device import Device
from generator.model_facts import ModelFacts
from services.cli import stack
from services.cli.app import app
from services.stack.run_state import RunningStack

GIB = 1 << 30


@pytest.fixture
def device(monkeypatch, tmp_path):
    """Sets the device that is found."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RAGTREE_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("RAGTREE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "200")

    def found(memory_gib: float, *, is_gpu: bool) -> None:
        there = Device("NVIDIA A10G" if is_gpu else "CPU", int(memory_gib * GIB), is_gpu, native_bfloat16=True)
        monkeypatch.setattr("services.cli.models.find_device", lambda: there)

    found(24, is_gpu=False)
    return found


@pytest.fixture
def started(monkeypatch):
    """Notes what would be fetched and started, instead of doing it."""
    seen = {}

    class Process:
        def __init__(self, data_dir, environment=None):
            seen["environment"] = environment

        def start(self, wait_s, on_wait):
            return RunningStack(1, "http://127.0.0.1:1", "")

    class Factory:
        def __init__(self, config):
            self._config = config

        def fetch(self):
            seen["fetched"] = self._config.generator.model

        def facts(self):
            return seen.get("facts")

    monkeypatch.setattr(stack, "StackProcess", Process)
    monkeypatch.setattr(stack, "generator_factory", Factory)
    return seen


def run(*arguments: str):
    ran = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert ran.exit_code == 0, ran.output
    return ran


def listed() -> dict[str, dict]:
    return {model["name"]: model for model in json.loads(run("models", "--json").stdout)["models"]}


def test_models_are_listed_with_what_decides_whether_they_fit(device):
    models = listed()
    shipped = models["smollm2-135m-instruct"]
    assert shipped["kv_bytes_per_token"] == 2 * 30 * 3 * 64 * 2
    assert shipped["weight_bytes"] == 2 * 134_515_008
    assert (shipped["licence"], shipped["fits"], shipped["is_local"]) == ("Apache-2.0", "yes", True)
    assert models["meta-llama/Llama-3.3-70B-Instruct"]["fits"] == "no"
    device(320, is_gpu=True)
    assert listed()["meta-llama/Llama-3.3-70B-Instruct"]["fits"] == "yes"


def test_the_table_names_the_device_and_may_leave_out_what_does_not_fit(device):
    assert "CPU, 24.0 GiB of memory" in run("models").stdout
    assert "Llama-3.3-70B" in run("models").stdout
    assert "Llama-3.3-70B" not in run("models", "--fitting").stdout


def test_a_converted_model_is_listed_under_the_name_that_starts_it(device, tmp_path):
    folder = tmp_path / "cache" / "models" / "mine-0123456789ab"
    folder.mkdir(parents=True)
    config = {"num_attention_heads": 4, "num_hidden_layers": 2, "hidden_size": 64, "max_position_embeddings": 99}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").write_bytes(bytes(1000))
    (folder.parent / ".half-0123456789ab-x").mkdir()
    mine = listed()[str(folder)]
    assert mine == mine | {"parameters": 500, "kv_bytes_per_token": 2 * 2 * 4 * 16 * 2, "context": 99, "is_local": True}


def test_up_takes_a_model_in_place_of_the_configured_one(device, started, tmp_path, monkeypatch):
    monkeypatch.setenv("RAGTREE_GENERATOR__MODEL", "configured")
    run("up", "--detach")
    assert started == {"fetched": "configured", "environment": {stack.MODEL_VARIABLE: "configured"}}
    (tmp_path / "mine.gguf").touch()
    run("up", "--detach", "--model", "mine.gguf")
    file = str(tmp_path / "mine.gguf")
    assert started == {"fetched": file, "environment": {stack.MODEL_VARIABLE: file}}
    run("up", "--detach", "--model", "some/id")
    assert started["fetched"] == "some/id"


def test_models_are_listed_with_what_they_keep_and_where_it_serves(device):
    models = listed()
    shipped, hybrid = models["smollm2-135m-instruct"], models["Qwen/Qwen3-Next-80B-A3B-Instruct"]
    assert (shipped["keeps"], shipped["bytes_per_state"]) == ("KV of all tokens in 30 layers", 0)
    assert hybrid["keeps"] == "KV of all tokens in 12 layers, a state in 36 layers"
    assert hybrid["bytes_per_state"] == 36 * (3 * 8192 + 32 * 128 * 128) * 2
    assert [model["reuse"] for model in (shipped, hybrid)] == ["anywhere", "after the same documents"]
    assert models["openai/gpt-oss-20b"]["keeps"].endswith("KV of the last 128 tokens in 12 layers")
    assert models["deepseek-ai/DeepSeek-V2-Lite-Chat"]["keeps"] == "latent vectors of all tokens in 27 layers"


def test_up_says_what_a_model_keeps_before_it_loads_it(device, started, monkeypatch):
    assert "It keeps" not in run("up", "--detach").stderr
    sizes = {"parameters": 10**9, "kv_heads": 8, "head_dim": 64, "context": 4096}
    started["facts"] = ModelFacts("new", layers=4, **sizes, state_layers=12, state_values=1 << 20)
    assert (
        "It keeps KV of all tokens in 4 layers, a state in 12 layers (8 KiB a token, 2.0 MiB a state). A document's KV "
        "serves after the same documents. With 1.9 GiB of weights it fits CPU, 24.0 GiB"
    ) in run("up", "--detach").stderr
    started["facts"] = ModelFacts("large", layers=32, **sizes | {"parameters": 10**11})
    assert "serves anywhere. With 186.3 GiB of weights it is too large for CPU" in run("up", "--detach").stderr
    monkeypatch.setenv("RAGTREE_GENERATOR__ADAPTERS", '{"legal": "/adapters/legal"}')
    assert "serves after the same documents, because of the adapters. With" in run("up", "--detach").stderr


def test_up_advises_a_larger_model_on_a_gpu_only(device, started):
    assert "room for a larger model" not in run("up", "--detach").stderr
    device(24, is_gpu=True)
    told = run("up", "--detach").stderr
    assert "NVIDIA A10G has room for a larger model: `ragtree up --model Qwen/Qwen3-8B` (Apache-2.0)" in told
    assert "larger model" not in run("up", "--detach", "--model", "some/id").stderr
    # Llama-3.2-1B fits as well, but the hub gives it only to those who have accepted its licence.
    device(5, is_gpu=True)
    assert "`ragtree up --model Qwen/Qwen2.5-0.5B-Instruct`" in run("up", "--detach").stderr
    device(1, is_gpu=True)
    assert "larger model" not in run("up", "--detach").stderr
