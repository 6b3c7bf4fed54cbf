"""The proof for a GPU, in its form for a CPU."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[3]

BUDGET_S = "1500"
"""The script's own budget is for a GPU. A slow CPU, beside other tests, has used nearly all of it."""


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a short path, because vLLM's sockets are among its files."""
    with tempfile.TemporaryDirectory(prefix="proof-", dir="/tmp") as name:
        yield Path(name)


def prove(folder: Path, *options: str) -> tuple[int, dict]:
    """The exit code and the report of a run."""
    file = folder / "report.json"
    done = subprocess.run(
        [ROOT / "scripts" / "gpu-proof", "--small", "--output", file, *options],
        env={**os.environ, "PYTHON": sys.executable, "TMPDIR": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert file.exists(), done.stderr
    return done.returncode, json.loads(file.read_text())


def assert_all_passed(code: int, report: dict, count: int) -> None:
    others = {check["name"]: check["why"] for check in report["checks"] if check["status"] != "passed"}
    if not torch.cpu._is_avx512_supported():
        others = {name: why for name, why in others.items() if why != "vLLM's kernels for FP8 need AVX-512"}
    assert others == {}
    assert len(report["checks"]) == count
    assert code == 0


@pytest.mark.prove("lab/ragtree_lab/gpu_proof/", "generator/device.py", "generator/tiers/")
@pytest.mark.vllm
def test_blocks_and_an_engine_pass(folder):
    assert_all_passed(*prove(folder, "--levels", "1,2", "--budget", BUDGET_S), 49)


@pytest.mark.prove("lab/ragtree_lab/gpu_proof/", "generator/device.py", "generator/tiers/")
@pytest.mark.vllm
def test_a_benchmark_passes(folder):
    assert_all_passed(*prove(folder, "--levels", "3", "--only", "tiers", "--budget", BUDGET_S), 1)


@pytest.mark.prove("lab/ragtree_lab/gpu_proof/", "lab/ragtree_lab/fixed_costs/", "generator/connector/")
@pytest.mark.vllm
def test_fixed_costs_come_first_of_the_quick_form(folder):
    code, report = prove(folder, "--quick", "--only", "fixed costs", "--budget", BUDGET_S)
    assert_all_passed(code, report, 1)
    assert "352 tokens: floor " in report["checks"][0]["figure"]


def test_without_time_nothing_is_proven(folder):
    code, report = prove(folder, "--levels", "2", "--budget", "1")
    assert {check["status"] for check in report["checks"]} == {"skipped"}
    assert code == 1
    assert report["machine"]["cores"] > 0
    assert set(report["checks"][0]) == {"name", "level", "status", "seconds", "figure", "why"}
