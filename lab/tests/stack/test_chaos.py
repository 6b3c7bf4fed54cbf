"""Chaos on a stack of its own, with the fake engine: one process of each kind is killed under load."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
VICTIMS = ["generator", "controller", "retriever", "redis", "proxy"]

pytestmark = [pytest.mark.ray, pytest.mark.prove("lab/ragtree_lab/chaos/", "services/stack/")]


def end_of(command):
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        log, _ = process.communicate(timeout=400)
    finally:
        # Its stack stops with it, if it still runs.
        process.terminate()
        process.wait()
    return process.returncode, log


def test_every_request_ends_correctly_whatever_is_killed(tmp_path):
    command = [sys.executable, "-m", "ragtree_lab.chaos", "--minutes", "0", "--documents", "16", "--max-tokens", "16"]
    command += ["--pause-s", "0.5", "--redis-away-s", "1", "--seed", "6", "--report-dir", str(tmp_path)]
    command += [part for victim in VICTIMS for part in ("--victim", victim)]
    status, log = end_of(command)
    assert status == 0, log
    (folder,) = tmp_path.glob("chaos-*")
    results = json.loads((folder / "results.json").read_text())
    assert results["problems"] == []
    assert sorted(kill["victim"] for kill in results["kills"]) == sorted(VICTIMS)
    recovered = {kill["victim"]: kill["recovery_s"] for kill in results["kills"]}
    assert all(seconds > 0 for seconds in recovered.values())
    # Three checks of Ray's default period would take longer.
    assert recovered["proxy"] < 20
    assert set(results["fates"]) <= {"completed", "failed", "refused", "cut"}
    assert results["fates"]["completed"] > 40
    assert "fake engine, not a model" in (folder / "report.md").read_text()
    assert (folder / "chaos.png").exists()
