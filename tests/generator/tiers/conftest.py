"""Arenas and servers of objects for tests, closed at their end."""

import socket
from contextlib import ExitStack

import pytest
from s3_server import CREDENTIALS, S3Server
from tier_checks import check_tier
from tiers_under_test import open_arena

from generator.tiers.arena import HostArena


@pytest.fixture
def opened(tmp_path):
    """Opens arenas on one file, and closes them at the end."""
    with ExitStack() as stack:

        def open_one(**changes) -> HostArena:
            arena = open_arena(tmp_path, **changes)
            stack.callback(arena.close)
            return arena

        yield open_one


@pytest.fixture
def arena(opened):
    arena = opened()
    yield arena
    check_tier(arena)


@pytest.fixture(scope="session")
def s3_server():
    server = S3Server()
    yield server
    server.close()


@pytest.fixture
def s3(s3_server, monkeypatch):
    """A server of S3's protocol, with credentials for it in the environment."""
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    return s3_server


@pytest.fixture
def unused_port():
    """A port on which nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]
