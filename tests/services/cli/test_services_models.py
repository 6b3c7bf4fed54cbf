"""``ragtree models``, and the model that ``ragtree up`` starts with."""

import json

import pytest
from typer.testing import CliRunner

from generator.device import Device
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
