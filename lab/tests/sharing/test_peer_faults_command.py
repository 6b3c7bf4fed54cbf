"""The real command on the shipped model, whose KV is worth reading: an engine lies and is killed, and queries go on."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from platformdirs import user_cache_path
from typer.testing import CliRunner

from generator.models import ModelStore
from services.cli.app import app

COMMAND = [sys.executable, "-m", "services.cli", "bench", "peer-faults", "--json"]


def test_an_unknown_fault_is_refused_with_the_known_ones():
    ran = CliRunner().invoke(app, ["bench", "peer-faults", "--faults", "cut,rude"])
    assert ran.exit_code == 2
    assert "'rude' is not a valid Fault" in ran.output
    assert "killed,stopped,slow,cut,lying" in ran.output


@pytest.fixture
def places() -> Iterator[Path]:
    """Empty places for temporary files, host memory and profiles. Their path is short, because of sockets in it."""
    with tempfile.TemporaryDirectory(prefix="faults-") as name:
        for place in ("tmp", "host"):
            (Path(name) / place).mkdir()
        yield Path(name)


@pytest.mark.prove("lab/ragtree_lab/sharing/", "generator/peers/")
@pytest.mark.vllm
def test_answers_stay_right_and_the_peer_serves_again(places):
    model = ModelStore(user_cache_path("ragtree")).resolve("smollm2-135m-instruct")
    environment = {
        **os.environ,
        "TMPDIR": str(places / "tmp"),
        "RAGTREE_CACHE_DIR": str(places / "cache"),
        "RAGTREE_GENERATOR__MODEL": str(model),
        "RAGTREE_GENERATOR__MAX_MODEL_LEN": "1024",
        "RAGTREE_GENERATOR__KV__HOST_DIR": str(places / "host"),
    }
    # At this rate computing keeps up on two busy cores. Else queries pile up, and trials of the link wait behind them.
    load = ["--rate", "1", "--seconds", "8"]
    size = ["--documents", "8", "--document-tokens", "128", "--kv-tokens", "1024"]
    ran = subprocess.run(
        [*COMMAND, "--faults", "lying,killed", *load, *size],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "Exception ignored" not in ran.stderr
    found = json.loads(ran.stdout)
    assert [row["fault"] for row in found["rows"]] == ["lying", "killed"]
    for row in found["rows"]:
        assert row["wrong"] == 0
        assert (row["before"]["queries"], row["during"]["queries"]) == (8, 8)
        assert row["before"]["read_share"] > 0.5
        assert row["before"]["failures"] == 0
        assert row["during"]["read_share"] == 0
        assert row["during"]["failures"] > 0
        assert row["served_again_s"] is not None
    assert list((places / "host").iterdir()) == list((places / "tmp").glob("ragtree-*")) == []
