"""A process that ends without a search for garbage ends in order otherwise."""

import atexit
import gc
import multiprocessing
import sys
from pathlib import Path

import pytest

from generator.connector.engine_process import exit_without_collecting

STATUS = 3


class Garbage:
    """An object that only a search finds. It notes that one has found it."""

    def __init__(self, note: Path) -> None:
        self.itself = self
        self.note = note

    def __del__(self) -> None:
        self.note.touch()


def child(folder: Path, quick: bool) -> None:
    if quick:
        exit_without_collecting()
    # None before the end: a collection in passing would find the object, too.
    gc.set_threshold(1_000_000)
    atexit.register((folder / "ended in order").touch)
    Garbage(folder / "found")
    sys.exit(STATUS)


@pytest.mark.parametrize("quick", [False, True])
def test_nothing_is_searched_at_the_end(tmp_path, quick):
    process = multiprocessing.get_context("spawn").Process(target=child, args=(tmp_path, quick))
    process.start()
    process.join()
    assert process.exitcode == STATUS
    assert (tmp_path / "ended in order").exists()
    assert (tmp_path / "found").exists() is not quick


def test_it_concerns_only_processes_that_were_started_for_it(monkeypatch):
    registered = []
    monkeypatch.setattr(atexit, "register", registered.append)
    exit_without_collecting()
    assert registered == []
