"""Asks the first machine's Ray who belongs to the cluster, before this machine belongs to it."""

import socket
from collections.abc import Mapping

from ray._raylet import GcsClient  # type: ignore[attr-defined]  # public calls need a Ray node here
from ray.core.generated.gcs_pb2 import GcsNodeInfo
from ray.exceptions import AuthenticationError, RayError

from generator.peers.wire import host_and_port
from protocol.errors import ConfigError, RagtreeError
from services.cluster.identity import difference

_REACHED_S = 5.0
"""How long the first machine may take to accept a connection. Ray itself would try for 40 s."""
_ANSWER_S = 10.0
_HEAD = "node:__internal_head__"


class JoinFailed(RagtreeError):
    """The machine cannot join a stack, or no longer belongs to it."""

    code = "join_failed"


class Head:
    """The first machine of a stack, at ``address``: ``host:port``, by its ``cluster.port``.

    Raises ConfigError if the address is none. Raises JoinFailed if nothing answers there, or if it refuses Ray's token
    of this machine.
    """

    def __init__(self, address: str) -> None:
        self._address = address
        try:
            host, port = host_and_port(address)
        except ValueError as error:
            raise ConfigError(f"{error}, as in `ragtree join 10.0.0.1:6379`", "head") from error
        try:
            socket.create_connection((host, port), _REACHED_S).close()
        except OSError as error:
            raise JoinFailed(
                f"nothing answers at {address}: {error}. Does `ragtree up` run there with cluster.port={port}, and "
                "does the network let this machine reach it?"
            ) from error
        try:
            self._client = GcsClient(address=address)
        except AuthenticationError as error:
            raise JoinFailed(
                f"{address} refuses this machine's token: copy ~/.ray/auth_token of the first machine to the same "
                "place here, or name the copy in RAY_AUTH_TOKEN_PATH"
            ) from error
        except RayError as error:
            raise JoinFailed(f"what answers at {address} is not Ray, or not this version of it: {error}") from error

    def check(self, own: Mapping[str, str]) -> None:
        """Raise JoinFailed if a machine with these labels cannot be part of the stack."""
        first = next((node for node in self._alive() if _HEAD in node.resources_total), None)
        if first is None:
            raise JoinFailed(f"{self._address} is starting, or its Ray has no head; try again")
        reason = difference(first.labels, own)
        if reason is not None:
            raise JoinFailed(f"this machine cannot join {self._address}: {reason}")

    def has(self, node: str) -> bool:
        """Whether a node of this name belongs to the cluster now. Raises JoinFailed if the head does not answer."""
        return any(found.node_name == node for found in self._alive())

    def _alive(self) -> list[GcsNodeInfo]:
        try:
            nodes = self._client.get_all_node_info(timeout=_ANSWER_S).values()
        except RayError as error:
            raise JoinFailed(f"{self._address} does not answer any more: {error}") from error
        return [node for node in nodes if node.state == GcsNodeInfo.ALIVE]
