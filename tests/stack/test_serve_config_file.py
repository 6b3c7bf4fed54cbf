"""The stack started by `serve run` from its config file, with the gateway behind Serve's own proxies."""

import os
import socket
import subprocess
import sys

import httpx
import pytest
from stacks import FAKE, FREEDONIA, PATIENCE_S, command, ended_job, until

pytestmark = [pytest.mark.ray, pytest.mark.prove("services/")]


def test_serve_runs_the_stack_from_its_config_file(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    environment = {
        **FAKE,
        # Not the Ray of another test, which `ray start` has made known to the whole machine.
        "RAY_ADDRESS": "local",
        "RAGTREE_DATA_DIR": str(tmp_path / "data"),
        "RAGTREE_SERVER__PORT": str(port),
        "RAGTREE_SERVING__GATEWAY__MIN_REPLICAS": "2",
    }
    file = tmp_path / "serve.yaml"
    file.write_text(command("config", "render", **environment).stdout)
    log = (tmp_path / "log").open("wb")
    # `import services` first sets Ray's environment variables. In the images they are set already.
    script = "import services; from ray.serve.scripts import cli; cli()"
    with subprocess.Popen(
        [sys.executable, "-c", script, "run", str(file)], env={**os.environ, **environment}, stdout=log, stderr=log
    ) as serve:
        try:
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=120) as client:
                until(lambda: answers(client) or serve.poll() is not None)
                assert serve.poll() is None, (tmp_path / "log").read_text()
                path = "/v1/collections/countries/documents/freedonia"
                job = client.put(path, content=FREEDONIA, headers={"Content-Type": "text/plain"}).json()
                until(lambda: ended_job(client, job["job_id"]))
                # The other gateway may still have to see that the controller has started.
                frames = until(lambda: answer_lines(client))
            assert frames[0] == "event: query.created"
            assert frames[-2] == "event: query.completed"
        finally:
            serve.terminate()
            serve.wait(PATIENCE_S)


def answer_lines(client: httpx.Client) -> list[str]:
    """The lines of a streamed answer; none while a gateway refuses queries."""
    reply = client.post("/query", json={"query": "capital?", "collection": "countries", "stream": True})
    return [line for line in reply.text.splitlines() if line] if reply.status_code == 200 else []


def answers(client: httpx.Client) -> bool:
    try:
        return client.get("/readyz").status_code == 200
    except httpx.TransportError:
        return False
