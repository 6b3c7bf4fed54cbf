"""The Ray node of a machine that joins another one's Ray: its own process."""

import os
import subprocess
import sys
from collections.abc import Mapping
from typing import BinaryIO

from services.cluster.first_machine import OBJECT_STORE_BYTES


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
        start_new_session=True,
    )
