"""Runs this machine's part of another machine's stack: a Ray node, on which Serve places engines."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from typing import BinaryIO
from uuid import uuid4

import msgspec
import psutil
from ray.util import get_node_ip_address

from generator.device import find_device
from services.cluster.first_machine import OBJECT_STORE_BYTES, Head, JoinFailed, identity_labels, require_token, room
from services.cluster.machine import VARIABLE, Machine
from services.config import Config
from services.model import kv_settings
from services.stack.run_state import RunState, end_family, end_of

_POLL_S = 0.2
_DRAIN_S = 30
"""How long running streams may take to finish when this machine leaves."""
LEAVE_S = _DRAIN_S + 20.0
"""How long leaving may take in all before what still runs is killed."""


class Member:
    """A machine as a part of the stack whose first machine is ``head``: ``host:port``.

    ``config`` is the machine's. It has the machine's own options; all others come from the first machine.
    """

    def __init__(self, config: Config, head: str) -> None:
        self._config = config
        self._head = head
        self._state = RunState(config.data_dir)

    def run(self, wait_s: float, on_wait: Callable[[str], None], on_joined: Callable[[], None]) -> None:
        """Join, stay until SIGINT or SIGTERM, and leave: streams may finish, and what was started is ended.

        ``on_wait`` is called with what is being waited for, ``on_joined`` once the machine belongs to the cluster.

        Raises Conflict if a stack owns the data folder, ConfigError if the configuration does not allow it, and
        JoinFailed if the machine cannot join within ``wait_s`` seconds, or if its node ends.
        """
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        # Files written from here on, also by Ray's processes, contain documents.
        os.umask(0o077)
        require_token("head")
        labels = identity_labels(self._config)
        with self._state.claimed():
            try:
                on_wait(f"asking {self._head}")
                head = Head(self._head)
                head.check(labels)
                self._take_part(head, labels, wait_s, on_wait, on_joined)
            except KeyboardInterrupt:
                on_wait("left")

    def _take_part(
        self,
        head: Head,
        labels: dict[str, str],
        wait_s: float,
        on_wait: Callable[[str], None],
        on_joined: Callable[[], None],
    ) -> None:
        host = self._config.cluster.host or get_node_ip_address(self._head)
        name = f"ragtree-{uuid4().hex[:12]}"
        with self._state.log_file.open("wb") as output:
            node = start_node(
                *(self._head, host, name, output),
                *("--resources", msgspec.json.encode(room(self._config.cluster.engines, find_device())).decode()),
                *("--labels", ",".join(f"{label}={value}" for label, value in labels.items())),
                environment={
                    VARIABLE: Machine.of(self._config).model_dump_json(),
                    "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": str(_DRAIN_S),
                },
            )
        try:
            self._await_member(head, node, name, wait_s, on_wait)
            on_joined()
            node.wait()
            raise JoinFailed(
                f"this machine's Ray node has ended; it does when it loses {self._head}.\n{self._log_tail()}"
            )
        except KeyboardInterrupt:
            on_wait(f"leaving {self._head}; streams may take {_DRAIN_S} s to finish")
            raise
        finally:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            if node.poll() is None:
                end_family(psutil.Process(node.pid), LEAVE_S)
            # Shared memory that looks like a file. Nothing uses it any more.
            kv_settings(self._config, host).discard_host_memory()

    def _await_member(
        self, head: Head, node: subprocess.Popen[bytes], name: str, wait_s: float, on_wait: Callable[[str], None]
    ) -> None:
        on_wait("Ray is starting")
        deadline = time.monotonic() + wait_s
        while not head.has(name):
            if node.poll() is not None:
                raise JoinFailed(f"this machine's Ray node ended while it was starting:\n{self._log_tail()}")
            if time.monotonic() > deadline:
                raise JoinFailed(f"this machine did not become a member within {wait_s:g} s:\n{self._log_tail()}")
            time.sleep(_POLL_S)

    def _log_tail(self) -> str:
        return end_of(self._state.log_file)


def start_node(
    head: str, host: str, name: str, output: BinaryIO, *options: str, environment: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """Start a node with this ``name`` that joins the Ray at ``head``, and is reached at ``host``.

    ``options`` are those of ``ray start``. The node's workers have the variables of ``environment``, too. It ends when
    it loses the head; end it with ``end_family``.
    """
    return subprocess.Popen(  # noqa: S603  # nosec B603  # the arguments are the operator's
        [
            *(sys.executable, "-m", "ray.scripts.scripts", "start", "--block"),
            *("--address", head, "--node-ip-address", host, "--node-name", name),
            *("--object-store-memory", str(OBJECT_STORE_BYTES)),
            *options,
        ],
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        # A Ctrl-C of the terminal is for this process, which then ends the node in order.
        process_group=0,
    )
