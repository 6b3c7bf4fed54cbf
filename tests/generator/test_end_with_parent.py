"""A process does not outlive a parent that was killed."""

import multiprocessing
import os
import signal
import time
from multiprocessing.connection import Connection
from pathlib import Path

import psutil
import pytest

from generator.connector import engine_process

END_S = 20.0


def child(pids: Connection, deaf: bool) -> None:
    if deaf:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        engine_process._PATIENCE_S = 0.1
    engine_process.end_with_parent()
    pids.send(os.getpid())
    time.sleep(1000)


def parent(pids: Connection, deaf: bool) -> None:
    multiprocessing.get_context("spawn").Process(target=child, args=(pids, deaf)).start()
    time.sleep(1000)


@pytest.mark.parametrize("deaf", [False, True], ids=["ends on SIGTERM", "ignores SIGTERM"])
def test_a_child_ends_when_its_parent_is_killed(deaf):
    spawn = multiprocessing.get_context("spawn")
    receiver, sender = spawn.Pipe(duplex=False)
    process = spawn.Process(target=parent, args=(sender, deaf))
    process.start()
    assert receiver.poll(END_S)
    running = psutil.Process(receiver.recv())
    assert process.is_alive()
    process.kill()
    running.wait(END_S)


def test_a_process_that_was_started_otherwise_is_not_watched():
    before = Path("/proc/self/task").stat().st_nlink
    engine_process.end_with_parent()
    assert Path("/proc/self/task").stat().st_nlink == before
