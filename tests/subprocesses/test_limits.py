"""The kernel holds a worker to its limits."""

import signal
import subprocess
import sys

import pytest

MEMORY = "confine(512 << 20); bytearray(1 << 30)"
FILES = "confine(1 << 30); open('left', 'w', buffering=1).write('x\\n')"
TIME = "limit_processor_time(1)\nwhile True: pass"


@pytest.mark.parametrize(
    ("code", "outcome"), [(MEMORY, "MemoryError"), (FILES, "File too large"), (TIME, -signal.SIGXCPU)]
)
def test_limits(code, outcome, tmp_path):
    ran = subprocess.run(
        [sys.executable, "-c", f"from subprocesses.worker_process import confine, limit_processor_time\n{code}"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={"PYTHONPATH": ":".join(sys.path)},
        timeout=60,
        check=False,
    )
    assert outcome == ran.returncode or (isinstance(outcome, str) and outcome in ran.stderr)
    assert not any(file.stat().st_size for file in tmp_path.iterdir())
