"""What all tests share: property tests that give the same verdict on the same code, and a real Redis.

``RAGTREE_TEST_SEARCH=1`` lets property tests look for examples that nobody has tried yet.
"""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from redis_server import RedisServer

import cachectl

# pytest-xdist gives its workers a terminal of 80 columns, which a console made at import would keep.
for _size in ("COLUMNS", "LINES"):
    os.environ.pop(_size, None)

settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.register_profile("search", deadline=None)
settings.load_profile("search" if os.environ.get("RAGTREE_TEST_SEARCH") else "repeatable")


def pytest_sessionstart() -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # So a shell starts what runs in its background, and that all it starts; but tests interrupt what they start.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for compiled in Path(cachectl.__path__[0]).rglob("*.so"):
        source = compiled.with_name(f"{compiled.name.partition('.')[0]}.py")
        if not source.exists() or source.stat().st_mtime > compiled.stat().st_mtime:
            pytest.exit(f"{compiled.name} was compiled before its source changed: run `make setup`", returncode=2)


@pytest.fixture
def redis_server() -> Iterator[RedisServer]:
    """A running Redis of the test's own, empty, which it may kill, stop, fill and start again."""
    server = RedisServer().start()
    yield server
    server.stop()
