"""The load test against a real stack with a fake engine: it ingests, asks, and every stream ends as it should."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.ray


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
