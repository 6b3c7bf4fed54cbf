"""The reason why an engine did not start, from what its processes printed."""

import subprocess
import sys

import pytest

from examine.doctor.engine_slot import EngineLog
from protocol.errors import ConfigError

CHILD = """
EngineCore failed to start.
Traceback (most recent call last):
  File "core.py", line 1483, in run_engine_core
    engine_core = EngineCoreProc(*args, engine_index=dp_rank, **kwargs)
{raised}
Process EngineCore:
Traceback (most recent call last):
  File "process.py", line 314, in _bootstrap
{raised}
"""
PARENT = """
Traceback (most recent call last):
  File "utils.py", line 1432, in wait_for_engine_startup
RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {'EngineCore': 1}
"""
OURS = "protocol.errors.ConfigError: RAGTree's connector does not support pipeline parallelism: use tensor parallelism"
WORKER = "(Worker_TP0 pid=17) torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB."
WRAPPER = "Exception: WorkerProc initialization failed due to an exception in a background process."


@pytest.fixture
def log(tmp_path):
    return EngineLog(tmp_path / "log")


@pytest.mark.parametrize(
    ("printed", "reason"),
    [
        (CHILD.format(raised=OURS) + PARENT, OURS.partition(": ")[2]),
        (
            CHILD.format(raised="safetensors_rust.SafetensorError: incomplete metadata") + PARENT,
            "vLLM does not start: SafetensorError: incomplete metadata",
        ),
        (
            WORKER + CHILD.format(raised=WRAPPER) + PARENT,
            "vLLM does not start: OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB.",
        ),
        (OURS + CHILD.format(raised="ValueError: later") + PARENT, OURS.partition(": ")[2]),
        ("libtcmalloc is not found in LD_PRELOAD. For best performance, see: Errors\n", None),
        (PARENT, None),
        ("", None),
    ],
    ids=["our own", "vLLM's", "a worker's", "our own first", "no error", "no reason", "nothing"],
)  # fmt: skip
def test_the_reason_is_found(log, tmp_path, printed, reason):
    (tmp_path / "log").write_text(printed)
    assert log.reason() == reason


def test_a_reason_of_an_earlier_start_is_not_repeated(log, tmp_path):
    (tmp_path / "log").write_text(CHILD.format(raised=OURS))
    before = log.size
    assert log.reason(before) is None
    with (tmp_path / "log").open("a") as file:
        file.write("ValueError: new\n")
    assert log.reason(before) == "vLLM does not start: ValueError: new"


CAPTURING = """
import os, subprocess, sys
from pathlib import Path
from examine.doctor.engine_slot import EngineLog
print("before")
with EngineLog(Path(sys.argv[1])).capturing() as terminal:
    print("own output")
    subprocess.run([sys.executable, "-c", "import sys; print('child'); print('child error', file=sys.stderr)"])
    terminal.write("progress")
print("after")
print("after error", file=sys.stderr)
"""


def test_output_of_children_goes_to_the_log_and_nowhere_else(tmp_path):
    log = tmp_path / "log"
    ran = subprocess.run([sys.executable, "-c", CAPTURING, str(log)], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["before", "after"]
    assert ran.stderr == "progressafter error\n"
    assert sorted(log.read_text().splitlines()) == ["child", "child error", "own output"]


def test_a_log_that_cannot_be_written_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="cannot be written to: No such file or directory"):
        EngineLog(tmp_path / "nowhere" / "log")
