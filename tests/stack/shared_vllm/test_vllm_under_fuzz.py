"""A short campaign against the folder's stack with a real engine, through a gateway of its own that needs keys.

The folder's stack needs no key. Its name puts this module last: a campaign leaves documents and pins behind.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest
from stacks import cores

free_port = pytest.importorskip("ragtree_lab.watched_stack", reason="the laboratory is not installed").free_port

pytestmark = [
    pytest.mark.ray,
    pytest.mark.vllm,
    pytest.mark.prove("gateway/", "retriever/", "generator/", "subprocesses/", "lab/ragtree_lab/fuzz/"),
]

ROOT = Path(__file__).parents[3]
GATEWAY = """
import asyncio, sys
import services, ray, uvicorn
from protocol.logs import configure_logging
from services.app import build_app
from services.config import load_config

async def main():
    # Ray Serve's handles are made on the loop that they are used on.
    app = build_app(load_config())
    await uvicorn.Server(uvicorn.Config(app, port=int(sys.argv[2]), log_level="error", access_log=False)).serve()

configure_logging()
ray.init(address=sys.argv[1], logging_level="ERROR", log_to_driver=False)
asyncio.run(main())
"""
KEYS = {"stranger": "key-of-the-stranger", "judge": "key-of-the-judge", "admin": "key-of-the-administrator"}
PATIENCE_S = 120


@pytest.fixture(scope="module")
def gateway(vllm_stack, tmp_path_factory):
    """The address of a gateway with two tenants and an administrator in front of the folder's stack."""
    limits = {"concurrent_queries": 2, "concurrent_uploads": 3}
    keys = [
        {"secret": KEYS["stranger"], "tenant": "strangers", "limits": limits},
        {"secret": KEYS["judge"], "tenant": "judged"},
    ]
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, "-c", GATEWAY, vllm_stack.running.ray_address, str(port)],
        env={
            **os.environ,
            **vllm_stack.environment,
            "RAGTREE_DATA_DIR": str(tmp_path_factory.mktemp("gateway")),
            "RAGTREE_GATEWAY__API_KEYS": json.dumps(keys),
            "RAGTREE_GATEWAY__ADMIN_KEY": KEYS["admin"],
        },
    )
    url = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + PATIENCE_S
        while not is_ready(url):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.1)
        yield url
    finally:
        process.terminate()
        process.wait(PATIENCE_S)


def is_ready(url):
    try:
        return httpx.get(f"{url}/readyz", timeout=10).status_code == 200
    except httpx.HTTPError:
        return False


def test_strangers_break_nothing_and_the_judges_answers_stay_right(gateway, vllm_stack, tmp_path):
    before = {process.pid for process in vllm_stack.processes("ServeReplica")} | {p.pid for p in vllm_stack.engines()}
    command = [sys.executable, "-m", "ragtree_lab.fuzz", "--url", gateway, "--seed", "1", "--minutes", "0.5"]
    command += ["--most", "40", "--report-dir", str(tmp_path)]
    command += [part for who, key in KEYS.items() for part in (f"--{who}-key", key)]
    with cores():
        ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=400, check=False)
    (folder,) = tmp_path.glob("fuzz-*")
    report = (folder / "report.md").read_text() if (folder / "report.md").exists() else ran.stderr
    assert ran.returncode == 0, report
    results = json.loads((folder / "results.json").read_text())
    assert sum(results["requests"].values()) > 150
    assert results["files"] > 20
    assert results["judge"]["asked"] > 5
    assert results["judge"]["wrong"] == {}
    after = {process.pid for process in vllm_stack.processes("ServeReplica")} | {p.pid for p in vllm_stack.engines()}
    assert before <= after
