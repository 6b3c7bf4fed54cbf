"""``ragtree bench families``: real engines of small models, and what is refused."""

import json
import os
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from protocol.errors import ConfigError
from ragtree_lab.families.shapes import FAMILIES
from services.cli.app import app


def rows(*options: str) -> list[dict]:
    """What the command measures, in a process of its own: its engines log there."""
    command = [sys.executable, "-m", "services.cli", "bench", "families", *options, "--json"]
    environment = {**os.environ, "RAGTREE_GENERATOR__CPU_KV_CACHE_GIB": "1"}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)["rows"]


@pytest.mark.prove("lab/ragtree_lab/families/", "generator/connector/")
@pytest.mark.vllm
def test_a_model_of_ones_own_is_measured_or_refused_with_a_reason(tmp_path):
    """With states, and of a kind that does not exist."""
    shape = dict(FAMILIES["lfm2"].shape) | {"hidden_size": 64, "conv_dim": 64, "conv_dim_out": 64, "block_dim": 64}
    file = tmp_path / "config.json"
    file.write_text(json.dumps(shape | {"intermediate_size": 128, "num_attention_heads": 2, "num_key_value_heads": 1}))
    (measured,) = rows("--config", str(tmp_path), "--prompts", "2")
    assert sorted(measured["groups"]) == ["all tokens", "states", "states", "states"]
    assert (measured["prompts"], measured["tier_mismatches"]) == (2, 0)
    assert measured["tokens"].keys() >= {"computed"}
    assert min(*measured["ttft_ms"].values(), *measured["ms_per_token"].values(), measured["bytes_per_state"]) > 0
    file.write_text(json.dumps(shape | {"model_type": "rwkv"}))
    (refused,) = rows("--config", str(tmp_path), "--prompts", "2")
    assert refused["refused"]


@pytest.mark.parametrize(
    ("options", "content", "words"),
    [
        (["--family", "llama5"], "", "no family is called llama5; there are llama, "),
        (["--config"], "[1]", "names no model_type, so it is no model's config.json"),
        (["--config"], "{", "cannot be read"),
        (["--config"], '{"model_type": 7}', "names no model_type"),
    ],
)
def test_what_is_no_family_is_refused(tmp_path, options, content, words):
    file = tmp_path / "config.json"
    file.write_text(content)
    given = [*options, str(tmp_path)] if options == ["--config"] else options
    with pytest.raises(ConfigError, match=words):
        CliRunner().invoke(app, ["bench", "families", *given], catch_exceptions=False)
