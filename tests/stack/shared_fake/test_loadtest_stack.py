"""The load test and the soak test on a real stack with a fake engine: every stream ends correctly."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]

pytestmark = pytest.mark.ray


@pytest.mark.prove("loadtest/", "gateway/wire/")
def test_a_stack_answers_the_load_test(fake_stack, tmp_path):
    command = [sys.executable, "-m", "locust", "-f", "loadtest/locustfile.py", "--headless", "--only-summary"]
    command += ["--host", fake_stack.url, "--report-dir", str(tmp_path), "--schedule", "4:5", "--max-tokens", "12"]
    command += ["--documents", "12", "--document-words", "40", "--disconnect-share", "0.2"]
    command += ["--ingest-rate", "1", "--delete-rate", "1"]
    ran = subprocess.run(command, cwd=ROOT, env=os.environ, capture_output=True, text=True, timeout=180, check=False)
    assert ran.returncode == 0, ran.stderr
    results = json.loads(next(tmp_path.glob("*/results.json")).read_text())
    total = results["total"]
    assert total["errors"] == {}
    assert set(total["outcomes"]) <= {"answered", "disconnected"}
    assert total["ttfr"]["count"] == total["ttft"]["count"] == total["outcomes"]["answered"] > 5
    assert total["output_tokens_per_s"] > 0
    assert results["writes"]["ingest"]["errors"] == {}
    with fake_stack.client() as client:
        listed = client.get("/v1/collections/loadtest-12x40-0/documents", params={"limit": 100}).json()["data"]
    assert {document["document_id"] for document in listed} == {str(number) for number in range(12)}


@pytest.mark.prove("lab/ragtree_lab/soak/", "loadtest/", "gateway/", "services/")
def test_a_stack_is_soaked(fake_stack, tmp_path):
    """Soak a stack for half a minute, with documents that come and go and clients that disconnect.

    The memory check covers that every process is watched throughout and none grows without bound. It does not cover
    that memory stays flat: a new process fills its caches for minutes. ``make soak`` skips the first five minutes and
    runs for thirty.
    """
    pytest.importorskip("ragtree_lab", reason="the laboratory is not installed")
    command = [sys.executable, "-m", "ragtree_lab.soak", "--url", fake_stack.url, "--report-dir", str(tmp_path)]
    command += ["--minutes", "0.5", "--rate", "4", "--growth-mib", "256"]
    command += ["--", "--documents", "16", "--document-words", "40", "--max-tokens", "12"]
    command += ["--disconnect-share", "0.2", "--ingest-rate", "1", "--delete-rate", "1"]
    before = processes(fake_stack)
    ran = subprocess.run(command, cwd=ROOT, env=os.environ, capture_output=True, text=True, timeout=180, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    (folder,) = tmp_path.glob("soak-*")
    verdict = json.loads((folder / "soak.json").read_text())
    assert verdict["problems"] == []
    (file,) = folder.glob("load/*/results.json")
    results = json.loads(file.read_text())
    for judged in (results["total"], *results["writes"].values()):
        assert judged["errors"] == {}
        assert set(judged["outcomes"]) <= {"answered", "disconnected", "refused"}
        assert judged["outcomes"].get("refused", 0) == sum(judged["refusals"].values())
    assert min(results["total"]["outcomes"][end] for end in ("answered", "disconnected")) > 5
    assert min(results["writes"][action]["outcomes"]["answered"] for action in ("ingest", "delete")) > 5
    # Ray ends its idle workers at any time.
    stayed = before & processes(fake_stack)
    watched = {trend["pid"]: trend for trend in verdict["memory"]}
    assert stayed <= set(watched)
    # Half a minute, minus the fifth that is left out.
    assert all(watched[pid]["first"] > 0 and watched[pid]["seconds"] > 15 for pid in stayed)


def processes(stack) -> set[int]:
    """Return the stack's own process and all its descendants."""
    return {stack.running.pid, *(process.pid for process in stack.processes(""))}
