"""The connector in a plain vLLM server, with only its own controller."""

import json
import os
import random
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest
from platformdirs import user_cache_path

from generator.models import ModelStore

pytestmark = [pytest.mark.vllm, pytest.mark.prove("contrib/vllm/", "generator/connector/")]

CONFIG = {
    "kv_connector": "RagtreeConnector",
    "kv_connector_module_path": "ragtree_vllm.plugin",
    "kv_role": "kv_both",
    "kv_load_failure_policy": "recompute",
}


class Server:
    """vLLM's own API server in a process of its own. Its prefix cache is off, so hits are the connector's."""

    def __init__(self, model: Path, folder: Path, **extra: object) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        extra_config = {
            "disk_dir": str(folder / "kv"),
            "host_dir": str(folder),
            "host_gib": 0.2,
            "disk_gib": 0.2,
            **extra,
        }
        command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model)]
        command += ["--host", "127.0.0.1", "--port", str(port), "--served-model-name", "m", "--max-model-len", "1024"]
        command += ["--dtype", "float32", "--block-size", "32", "--enforce-eager", "--max-num-batched-tokens", "1024"]
        command += ["--no-enable-prefix-caching", "--enable-prompt-tokens-details"]
        command += ["--kv-transfer-config", json.dumps({**CONFIG, "kv_connector_extra_config": extra_config})]
        environment = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "OMP_NUM_THREADS": "1"}
        self.log = (folder / "server.log").open("w")
        self.process = subprocess.Popen(
            command,
            env=os.environ | environment | {"VLLM_CPU_OMP_THREADS_BIND": "nobind"},
            stdout=self.log,
            stderr=self.log,
        )

    def __enter__(self) -> "Server":
        give_up = time.monotonic() + 300
        while True:
            assert self.process.poll() is None, Path(self.log.name).read_text()[-3000:]
            assert time.monotonic() < give_up, Path(self.log.name).read_text()[-3000:]
            try:
                if httpx.get(f"{self.url}/health", timeout=20).status_code == 200:
                    return self
            except httpx.TransportError:
                time.sleep(0.2)

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.log.close()

    def ask(
        self, segments: list[list[int]], question: list[int], salt: str = "", **parameters: object
    ) -> tuple[str, int]:
        """Return the answer and the number of cached prompt tokens."""
        given = parameters if parameters else {"ragtree": {"segments": [len(segment) for segment in segments]}}
        body = {
            "model": "m",
            "prompt": [*(token for segment in segments for token in segment), *question],
            "max_tokens": 6,
            "temperature": 0,
            "kv_transfer_params": given,
            **({"cache_salt": salt} if salt else {}),
        }
        reply = httpx.post(f"{self.url}/v1/completions", json=body, timeout=120).raise_for_status().json()
        details = reply["usage"]["prompt_tokens_details"]
        return reply["choices"][0]["text"], details["cached_tokens"] if details else 0


def tokens(name: str, count: int) -> list[int]:
    draws = random.Random(name)
    return [draws.randrange(100, 20_000) for _ in range(count)]


def test_plugin_caches_and_reuses_segments(tmp_path):
    model = ModelStore(user_cache_path("ragtree")).resolve("smollm2-135m-instruct")
    system, first, second = tokens("system", 40), tokens("first", 210), tokens("second", 175)
    questions = [tokens(f"question {number}", 20) for number in range(6)]
    # No room in the engine's own blocks: all KV goes to host memory and is loaded from there.
    with Server(model, tmp_path, gpu_share=0.0, controller={"policy": "PGDSF"}) as server:
        truth, cached = server.ask([system, first, second], questions[0], salt="nobody's")
        assert cached == 0
        assert server.ask([system, first, second], questions[1])[1] == 0
        assert server.ask([system, first, second], questions[0]) == (truth, 425)
        # Another document behind the same prefix; another tenant; invalid segments; no segments.
        assert server.ask([system, first, tokens("third", 90)], questions[2])[1] == 250
        assert server.ask([system, first, second], questions[3], salt="stranger")[1] == 0
        assert server.ask([system, first], questions[4], ragtree={"segments": [40, -1]})[1] == 0
        assert server.ask([system, first], questions[4], ragtree={"segments": [4000]})[1] == 0
        assert server.ask([system, first], questions[4], other=1)[1] == 0
        assert server.ask([system, first, second], questions[0]) == (truth, 425)
    # The same folder again: KV in host memory and on disk is reused from the first request on.
    with Server(model, tmp_path, controller={"policy": "LRU", "swap": "write_through"}) as server:
        assert server.ask([system, first, second], questions[0]) == (truth, 425)
        assert server.ask([system, first, second], questions[0]) == (truth, 425)
