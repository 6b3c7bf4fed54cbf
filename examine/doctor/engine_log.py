"""What engines print, kept in a file: the reason why one did not start is there, and nothing disturbs the results."""

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import TextIO

from protocol.errors import ConfigError

_RAISED = re.compile(r"^(?:\([^()]*\) )*(?P<kind>[A-Za-z_][\w.]*(?:Error|Exception)): (?P<message>.+)$", re.MULTILINE)
_OURS = "protocol.errors."
_WITHOUT_REASON = ("Engine core initialization failed", "WorkerProc initialization failed")
"""The start of messages that refer to another one."""


class EngineLog:
    """The file ``path``, to which all output of this process and its children is added while it is ``capturing``.

    Raises ConfigError if the file cannot be written to.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            path.open("ab").close()
        except OSError as error:
            raise ConfigError(f"the log {path} cannot be written to: {error.strerror}") from error

    @property
    def size(self) -> int:
        """Bytes written so far."""
        return self._path.stat().st_size

    @contextmanager
    def capturing(self) -> Iterator[TextIO]:
        """Send standard output and standard error to the file. Yields a stream to the real standard error."""
        sys.stdout.flush()
        sys.stderr.flush()
        saved = [os.dup(number) for number in (1, 2)]
        with self._path.open("a", buffering=1) as file, os.fdopen(os.dup(2), "w") as terminal:
            for number in (1, 2):
                os.dup2(file.fileno(), number)
            try:
                # Python's own streams may be others than the descriptors, which child processes inherit.
                with redirect_stdout(file), redirect_stderr(file):
                    yield terminal
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                for number, original in zip((1, 2), saved, strict=True):
                    os.dup2(original, number)
                    os.close(original)

    def reason(self, since: int = 0) -> str | None:
        """Return why an engine failed, from the output after ``since`` bytes: our own error, or the last of others."""
        raised = [(match["kind"], match["message"]) for match in _RAISED.finditer(self._text(since))]
        ours = [message for kind, message in raised if kind.startswith(_OURS)]
        if ours:
            return ours[-1]
        others = [
            f"vLLM does not start: {kind.rpartition('.')[2]}: {message}"
            for kind, message in raised
            if not message.startswith(_WITHOUT_REASON)
        ]
        return others[-1] if others else None

    def _text(self, since: int) -> str:
        with self._path.open("rb") as file:
            file.seek(since)
            return file.read().decode(errors="replace")
