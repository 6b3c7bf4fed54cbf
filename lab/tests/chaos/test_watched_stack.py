"""The processes that chaos starts: a Redis that returns, and a stack that must leave no process behind."""

import sys
from contextlib import closing

import psutil
import pytest
import redis
from loadtest_runs import until

from loadtest.errors import LoadTestError
from ragtree_lab.chaos.redis_process import RedisProcess
from ragtree_lab.watched_stack import WatchedStack

STACK = """
import http.server, os, signal, subprocess, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit())
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)", *sys.argv[1:]], start_new_session=True)
class Ready(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
http.server.HTTPServer(("127.0.0.1", int(os.environ["RAGTREE_SERVER__PORT"])), Ready).serve_forever()
"""


@pytest.fixture
def server(tmp_path):
    with closing(RedisProcess(tmp_path)) as server:
        yield server


def answers(client):
    try:
        return client.ping()
    except redis.RedisError:
        return False


def test_killed_redis_restarts_empty(server):
    first = server.pid
    with redis.Redis.from_url(server.url) as client:
        client.set("kept", 1)
        server.kill(0.3)
        assert server.is_away
        assert not answers(client)
        until(lambda: not server.is_away and answers(client), timeout_s=10)
        assert client.get("kept") is None
    assert server.pid != first
    assert not psutil.pid_exists(first)


def test_paused_redis_keeps_its_data(server):
    first = server.pid
    with redis.Redis.from_url(server.url, socket_timeout=0.1) as client:
        client.set("kept", 1)
        server.hang(0.5)
        assert not answers(client)
        until(lambda: not server.is_away and answers(client), timeout_s=10)
        assert client.get("kept") == b"1"
    assert server.pid == first


def test_paused_redis_can_be_closed(tmp_path):
    server = RedisProcess(tmp_path)
    server.hang(60)
    server.close()
    assert not psutil.pid_exists(server.pid)


def test_remaining_processes_are_named_and_killed(tmp_path):
    command = [sys.executable, "-c", STACK, "left-behind"]
    stack = WatchedStack(tmp_path / "data", tmp_path / "log", {}, command, children_timeout_s=0.2)
    stack.start()
    (child,) = stack.processes()
    (left,) = stack.stop()
    assert "left-behind" in left
    assert str(child.pid) in left
    psutil.wait_procs([child], timeout=5)
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE


def test_failed_start_reports_the_log(tmp_path):
    stack = WatchedStack(tmp_path / "data", tmp_path / "log", {}, [sys.executable, "-c", "raise SystemExit('no room')"])
    with pytest.raises(LoadTestError, match="no room"):
        stack.start()
    assert stack.stop() == []
