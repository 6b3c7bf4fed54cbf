"""LangChain and LlamaIndex themselves, with the `openai` client that they bring, against a stack."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from client_environment import ROOT, clients_python

pytestmark = [pytest.mark.ray, pytest.mark.prove("gateway/wire/", "gateway/routes/", "protocol/")]

PROGRAMS = Path(__file__).parents[1] / "client_programs"


@pytest.fixture(scope="module")
def python() -> Path:
    return clients_python()


def returned(python: Path, program: str, url: str) -> dict[str, Any]:
    """What a program printed."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("OPENAI_")}
    ran = subprocess.run(
        [python, PROGRAMS / program, url, "countries", "hashing"],
        env={**inherited, "PYTHONPATH": str(ROOT)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


def test_langchains_classes_work_unchanged(fake_stack, python):
    got = returned(python, "langchain_program.py", fake_stack.url)
    assert got["answer"]
    assert got["streamed"] == got["asynchronous"] == got["answer"]
    assert got["batch"] == [got["answer"]] * 2
    assert got["parts"] > 2
    assert got["finish_reason"] == "length"
    assert got["usage"]["output_tokens"] == 12
    assert "/documents/freedonia" in got["found"][0]
    assert got["nearest"] == "The lake is deep."
    assert all(got[name] for name in ("chain", "completion", "example", "response"))
    assert got["response_streamed"] == got["response"]


def test_llamaindexs_classes_work_unchanged(fake_stack, python):
    got = returned(python, "llamaindex_program.py", fake_stack.url)
    assert got["answer"]
    assert got["streamed"] == got["asynchronous"] == got["answer"]
    assert "/documents/freedonia" in got["found"][0]
    assert got["sources"] == got["found"]
    assert got["nearest"] == "The lake is deep."
    assert all([got["completion"], got["example"], got["queried"], *got["chatted"]])
