"""Arenas for tests, closed at their end."""

from contextlib import ExitStack

import pytest
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
    arena.check_integrity()
