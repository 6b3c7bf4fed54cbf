"""Fixtures for all tests of the retriever."""

import pytest


@pytest.fixture(autouse=True)
def single_threaded_builds(monkeypatch):
    """Build indexes with one OpenMP thread. More slow down small indexes, especially on a busy machine."""
    monkeypatch.setattr("retriever.machine.os.cpu_count", lambda: 1)
