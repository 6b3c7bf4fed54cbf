"""What a conversion of a GGUF file prints: a line when it starts, one when it ends, and on a terminal a bar between."""

import json
import os
import pty
import re
import subprocess
import sys
import termios

import pytest
from tiny_gguf import write_tiny_gguf

CONVERT = """
import sys
from pathlib import Path

import services
from generator.models import ModelStore
from protocol.logs import configure_logging

configure_logging()
ModelStore(Path(sys.argv[2])).resolve(sys.argv[1])
"""

pytestmark = pytest.mark.prove("generator/models.py", "protocol/logs.py")


@pytest.fixture
def command(tmp_path):
    file = write_tiny_gguf(tmp_path / "tiny.gguf")
    return [sys.executable, "-c", CONVERT, str(file), str(tmp_path / "cache")]


@pytest.fixture
def environment():
    return {name: value for name, value in os.environ.items() if name != "TQDM_DISABLE"}


def test_a_log_has_a_line_at_the_start_and_one_at_the_end(command, environment):
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    lines = [json.loads(line) for line in ran.stderr.splitlines()]
    assert [line["event"] for line in lines] == ["converting a GGUF file, once", "the GGUF file is converted"]
    assert lines[1]["seconds"] > 0
    assert ran.stdout == ""


def test_a_terminal_has_one_bar_between_the_two_lines(command, environment):
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 100))
    with subprocess.Popen(command, env=environment, stdin=theirs, stdout=theirs, stderr=theirs) as converting:
        os.close(theirs)
        shown = _read(ours)
    assert converting.returncode == 0
    _, _, rest = shown.partition("converting a GGUF file, once")
    between, _, _ = rest.partition("the GGUF file is converted")
    assert between != rest
    names = {name.strip() for name in re.findall(r"[\r\n]([^\r\n|%]+): +\d+%", between)}
    assert names == {"Converting and de-quantizing GGUF tensors..."}


def _read(terminal: int) -> str:
    """All that is written to a terminal until its last writer ends."""
    parts = []
    while True:
        try:
            part = os.read(terminal, 65536)
        except OSError:  # how Linux says that nobody writes any more
            part = b""
        if not part:
            os.close(terminal)
            return b"".join(parts).decode()
        parts.append(part)
