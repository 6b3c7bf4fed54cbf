"""Other users of the machine cannot read a stack's files. Fake engine."""

import stat
from pathlib import Path

import psutil
import pytest

pytestmark = pytest.mark.ray


def umask(process: psutil.Process) -> str:
    status = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    return next(line.split()[1] for line in status if line.startswith("Umask:"))


def test_every_process_creates_private_files(fake_stack):
    stack = psutil.Process(fake_stack.running.pid)
    processes = [stack, *stack.children(recursive=True)]
    assert len(processes) > 4
    assert {umask(process) for process in processes} == {"0077"}


def test_folders_of_a_stack_are_private(fake_stack):
    kept = [path for path in fake_stack.folder.iterdir() if path.is_dir()]
    assert {path.name for path in kept} >= {"retriever", "run"}
    assert [path for path in kept if stat.S_IMODE(path.stat().st_mode) & 0o077] == []
