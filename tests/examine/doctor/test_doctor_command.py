"""The real command on a tiny model: it passes, says why it fails, and leaves nothing behind when it is ended."""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from processes import engines_under
from tiny_models import llama, make_tiny_model

from cachectl.runtime.composing import GateFolder
from examine.doctor.examination import standard_checks

pytestmark = pytest.mark.vllm

COMMAND = [sys.executable, "-m", "services.cli", "doctor", "--json"]
START_S = 300.0
END_S = 60.0


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("tiny-model"), llama())


@pytest.fixture
def places() -> Iterator[Path]:
    """Empty places for temporary files, host memory and KV. Their path is short, because sockets are among them."""
    with tempfile.TemporaryDirectory(prefix="doctor-") as name:
        for place in ("tmp", "host", "data"):
            (Path(name) / place).mkdir()
        yield Path(name)


def environment(places: Path, model: Path, **variables: str) -> dict[str, str]:
    return {
        **os.environ,
        "TMPDIR": str(places / "tmp"),
        "RAGTREE_DATA_DIR": str(places / "data"),
        "RAGTREE_CACHE_DIR": str(places / "cache"),
        "RAGTREE_GENERATOR__MODEL": str(model),
        "RAGTREE_GENERATOR__MAX_MODEL_LEN": "1024",
        "RAGTREE_GENERATOR__DTYPE": "float32",
        "RAGTREE_GENERATOR__KV__HOST_DIR": str(places / "host"),
        "RAGTREE_GENERATOR__KV__HOST_GIB": "0.25",
        "RAGTREE_GENERATOR__KV__DISK_GIB": "0.25",
        **variables,
    }


def left(places: Path) -> list[str]:
    return [str(file) for name in ("tmp", "host", "data") for file in (places / name).iterdir()]


@pytest.mark.prove("examine/doctor/", "generator/")
def test_a_right_engine_passes_and_nothing_is_left(places, model):
    drafts = {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3}}
    options = environment(places, model, RAGTREE_GENERATOR__ENGINE_ARGS=json.dumps(drafts))
    ran = subprocess.run(COMMAND, env=options, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "Exception ignored" not in ran.stderr
    found = json.loads(ran.stdout)
    assert found["passed"]
    assert [check["name"] for check in found["checks"]] == [check.name for check in standard_checks(GateFolder(Path()))]
    by_name = {check["name"]: check for check in found["checks"]}
    assert "float32" in by_name["vLLM with the cache"]["figure"]
    assert "from gpu, host, disk: 0 answers differ" in by_name["exact answers"]["figure"]
    assert "both right" in by_name["shared failing load"]["figure"]
    assert "a truncated file is computed again" in by_name["restart"]["figure"]
    # A random model quotes nothing, so drafts may cost more than they gain.
    assert by_name["speculative decoding"]["status"] in ("passed", "warning")
    assert re.fullmatch(
        r"a later token takes [\d.]+ ms, [\d.]+ without drafts; \d+% of drafted tokens are accepted",
        by_name["speculative decoding"]["figure"],
    )
    assert left(places) == []


@pytest.mark.parametrize(
    ("variables", "name", "why"),
    [
        pytest.param(
            {"RAGTREE_GENERATOR__MODEL": "/no/such/model"},
            "model",
            "'/no/such/model' is not a shipped model",
            id="model",
        ),
        pytest.param(
            {"RAGTREE_GENERATOR__MAX_MODEL_LEN": "4096"},
            "vLLM without the cache",
            "User-specified max_model_len (4096) is greater than the derived max_model_len",
            id="length",
            marks=pytest.mark.prove("examine/doctor/", "generator/engines/"),
        ),
    ],
)
def test_what_is_refused_is_said(places, model, variables, name, why):
    ran = subprocess.run(
        COMMAND, env=environment(places, model, **variables), capture_output=True, text=True, check=False
    )
    assert ran.returncode == 1
    last = ran.stderr.splitlines()[-1]
    assert last.startswith(f"{name}: ")
    assert why in last
    assert "validation error" not in last
    failed = [check for check in json.loads(ran.stdout)["checks"] if check["status"] == "failed"]
    assert [(check["name"], f"{name}: {check['why']}") for check in failed] == [(name, last)]
    assert left(places) == []


@pytest.mark.prove("examine/doctor/", "generator/")
def test_weights_that_are_cut_short_are_said(places, model, tmp_path):
    broken = tmp_path / "broken"
    broken.mkdir()
    for file in model.iterdir():
        (broken / file.name).write_bytes(file.read_bytes()[:100_000])
    ran = subprocess.run(COMMAND, env=environment(places, broken), capture_output=True, text=True, check=False)
    assert ran.returncode == 1
    assert ran.stderr.splitlines()[-1].startswith("vLLM without the cache: vLLM does not start: SafetensorError: ")
    assert left(places) == []


@contextmanager
def running(places: Path, model: Path) -> Iterator[tuple[subprocess.Popen[str], set[psutil.Process]]]:
    """A doctor whose first engine is loading, and the processes of that engine."""
    pipe = subprocess.PIPE
    with subprocess.Popen(COMMAND, env=environment(places, model), stdout=pipe, stderr=pipe, text=True) as process:
        try:
            deadline = time.monotonic() + START_S
            while not (engines := engines_under(psutil.Process(process.pid))):
                assert process.poll() is None, process.communicate()
                assert time.monotonic() < deadline, "no engine was started"
                time.sleep(0.05)
            yield process, engines
        finally:
            process.kill()


@pytest.mark.prove("examine/doctor/", "generator/")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_doctor_that_is_ended_leaves_nothing_behind(places, model, number):
    with running(places, model) as (process, engines):
        assert left(places)
        process.send_signal(number)
        out, err = process.communicate(timeout=END_S)
        assert process.returncode == 128 + number
        assert out == ""
        assert "Traceback" not in err
        assert left(places) == []
        gone, alive = psutil.wait_procs(engines, timeout=END_S)
        assert alive == []
        pids = [f"-{engine.pid}-" for engine in (*gone, process)]
        assert [file.name for file in Path("/dev/shm").iterdir() if any(pid in file.name for pid in pids)] == []
