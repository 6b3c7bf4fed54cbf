"""The one engine that a doctor runs at a time, because two may not fit the device, and what engines print.

That is kept in a file: the reason why one did not start is there, and nothing disturbs the results.
"""

import gc
import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, TextIO

from examine.measuring.engines import EngineMaker
from generator.engines.vllm_engine import VllmEngine
from protocol.errors import ConfigError, InternalError

_ELSEWHERE = "See root cause above"
"""What vLLM says if the reason is in the output of another process."""


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


class EngineSlot:
    """Starts and closes engines. Those with a cache keep KV on disk in ``folder``; ``kv`` overrides ``KvSettings``.

    All of them use the same host memory, which stays until its folder is removed.
    """

    def __init__(self, maker: EngineMaker, folder: Path, kv: Mapping[str, Any], log: EngineLog) -> None:
        self._maker = maker
        self.folder = folder
        self._kv = kv
        self._log = log
        self._exits = AsyncExitStack()
        self._engine: VllmEngine | None = None

    @property
    def running(self) -> VllmEngine:
        """The engine that runs."""
        if self._engine is None:
            raise InternalError("no engine is running")
        return self._engine

    async def start_plain(self, leave_out: str = "") -> VllmEngine:
        """Close what runs, and start vLLM without the connector. Raises ConfigError with vLLM's reason.

        One of the configured engine arguments may be left out.
        """
        maker = self._maker.without(leave_out) if leave_out else self._maker
        return await self._start(maker.plain())

    async def start_caching(self) -> VllmEngine:
        """Close what runs, and start the stack's engine. Raises ConfigError with the reason."""
        return await self._start(self._maker.caching(self.folder, keep_host=True, **self._kv))

    async def close(self) -> None:
        """Close the engine, if one runs."""
        self._engine = None
        await self._exits.aclose()
        # vLLM's objects refer to each other, and complain if Python's end finds them.
        gc.collect()

    async def _start(self, engine: AbstractAsyncContextManager[VllmEngine]) -> VllmEngine:
        await self.close()
        before = self._log.size
        try:
            self._engine = await self._exits.enter_async_context(engine)
        except ConfigError as error:
            if _ELSEWHERE not in error.message:
                raise
            # vLLM starts in its own processes, whose errors reach this one only as text.
            raise ConfigError(self._log.reason(before) or error.message, error.param) from error
        return self._engine
