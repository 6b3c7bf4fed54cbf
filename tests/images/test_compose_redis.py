"""Runs the compose file's Redis command on this machine. It starts and keeps its data."""

import socket
import subprocess
import time
from contextlib import contextmanager

import redis
from compose_files import BASE, merged

COMMAND = merged((BASE,))["services"]["redis"]["command"]


@contextmanager
def _running(folder):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    here = ["--bind", "127.0.0.1", "--port", str(port), "--dir", str(folder)]
    server = subprocess.Popen([*COMMAND, *here], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        yield _answering(server, redis.Redis(port=port, decode_responses=True))
    finally:
        server.terminate()
        server.communicate(timeout=10)


def _answering(server, client):
    deadline = time.monotonic() + 20
    while True:
        try:
            client.ping()
        except redis.ConnectionError:
            assert server.poll() is None, server.communicate()[0]
            assert time.monotonic() < deadline
            time.sleep(0.02)
        else:
            return client


def test_redis_refuses_writes_when_full_and_persists_its_log(tmp_path):
    with _running(tmp_path) as client:
        assert client.config_get("maxmemory") == {"maxmemory": str(512 * 1024 * 1024)}
        assert client.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}
        client.set("key", "value")
    with _running(tmp_path) as client:
        assert client.get("key") == "value"
    assert not (tmp_path / "dump.rdb").exists()
