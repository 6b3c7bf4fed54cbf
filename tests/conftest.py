"""Shared by all tests: repeatable property tests, which tests share a worker, and a real Redis.

``RAGTREE_TEST_SEARCH=1`` lets property tests search for new examples.
"""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from redis_server import RedisServer
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

import cachectl

# pytest-xdist gives its workers 80 columns, which a console created at import would keep.
for _size in ("COLUMNS", "LINES"):
    os.environ.pop(_size, None)

_ONE_WORKER = ("tests/generator/", "tests/stack/shared_fake/", "tests/stack/shared_vllm/")

settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.register_profile("search", deadline=None)
settings.load_profile("search" if os.environ.get("RAGTREE_TEST_SEARCH") else "repeatable")


def pytest_sessionstart() -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # A shell ignores SIGINT in its background jobs, and child processes inherit that. Tests send SIGINT to theirs.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for compiled in Path(cachectl.__path__[0]).rglob("*.so"):
        source = compiled.with_name(f"{compiled.name.partition('.')[0]}.py")
        if not source.exists() or source.stat().st_mtime > compiled.stat().st_mtime:
            pytest.exit(f"{compiled.name} was compiled before its source changed: run `make setup`", returncode=2)


class ByFileOrFolder(LoadScopeScheduling):
    """Hands the tests of a file to one worker, and all tests of a folder whose files share an engine or a stack."""

    def _split_scope(self, nodeid: str) -> str:
        folder = next((folder for folder in _ONE_WORKER if nodeid.startswith(folder)), None)
        return folder or nodeid.partition("::")[0]


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> ByFileOrFolder:
    return ByFileOrFolder(config, log)


@pytest.fixture
def redis_server() -> Iterator[RedisServer]:
    """A running, empty Redis for one test. The test may kill, stop, fill and restart it."""
    server = RedisServer().start()
    yield server
    server.stop()
