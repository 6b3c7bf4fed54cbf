"""A second machine for a stack under test: a Ray node on the same machine, with folders and an address of its own."""

import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil
from stacks import PATIENCE_S

ADDRESS = "127.0.0.2"


def of_several_machines(folder: Path) -> dict[str, str]:
    """The variables of a stack that machines can join. Its key is written into the folder."""
    key = folder / "peers-key"
    key.write_text("a secret of all machines")
    with socket.create_server(("", 0)) as free:
        port = str(free.getsockname()[1])
    return {"RAGTREE_CLUSTER__PORT": port, "RAGTREE_GENERATOR__KV__PEERS__KEY_FILE": str(key)}


class SecondMachine:
    """``ragtree join`` in a process of its own, on a folder of its own."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self.folder = folder
        self._log = folder.with_name("second.log")
        own = {"RAGTREE_DATA_DIR": str(folder), "RAGTREE_CLUSTER__HOST": ADDRESS}
        self._environment = {**os.environ, **environment, **own}
        self._process: psutil.Popen | None = None

    def join(self, head: str, engines: int = 1) -> None:
        with self._log.open("ab") as log:
            self._process = psutil.Popen(
                [sys.executable, "-m", "services.cli", "join", head],
                env={**self._environment, "RAGTREE_CLUSTER__ENGINES": str(engines)},
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def joined(self, times: int) -> bool:
        """Whether it has become a member so often."""
        return self._log.read_text().count("Joined") == times

    def kill(self) -> None:
        """End all its processes at once, as a power failure does."""
        if self._process is None or not self._process.is_running():
            return
        family = [self._process, *self._process.children(recursive=True)]
        for process in family:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(family)

    def leave(self) -> None:
        """Have it leave, and check that nothing of it stays."""
        family = self._process.children(recursive=True)
        self._process.send_signal(signal.SIGTERM)
        assert self._process.wait(PATIENCE_S) == 0, self._log.read_text()
        assert [process for process in family if process.is_running()] == []
