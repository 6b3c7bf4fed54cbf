"""New connections to peers, authenticated."""

import socket
import time
from typing import TypeAlias

from generator.peers.address import host_and_port
from generator.peers.errors import PeerUnreachable, Reason
from generator.peers.handshake import introduce
from generator.peers.peer_key import PeerKey
from generator.peers.stream import Stream
from generator.peers.wire import PageFormat

_Place: TypeAlias = tuple[str, int] | tuple[str, int, int, int] | tuple[int, bytes]
"""What a socket connects to: a host and a port, with two more numbers in IPv6."""


class Connector:
    """Connects to servers that know ``key`` and whose pages have ``own_format``.

    Connecting and authenticating take ``timeout_s`` seconds at most. Then no call on the stream waits longer than that
    for the peer. The system looks up host names, which has limits of its own: deadlines hold for IP addresses.
    """

    def __init__(self, own_format: PageFormat, key: PeerKey, timeout_s: float) -> None:
        self._format = own_format
        self._key = key
        self._timeout_s = timeout_s

    def connect(self, address: str, deadline: float) -> Stream:
        """An authenticated connection to ``address``. Raises PeerUnreachable."""
        deadline = min(deadline, time.monotonic() + self._timeout_s)
        connected = _connected(address, deadline)
        try:
            stream = Stream(connected, address, self._timeout_s)
            introduce(stream, self._key, self._format, deadline)
        except OSError as error:
            connected.close()
            raise PeerUnreachable(Reason.CUT, f"the connection to {address} was cut: {error.strerror}") from error
        except BaseException:
            connected.close()
            raise
        return stream


def _connected(address: str, deadline: float) -> socket.socket:
    """A socket that is connected to one of the hosts of ``address``."""
    try:
        host, port = host_and_port(address)
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, ValueError) as error:
        raise PeerUnreachable(Reason.REFUSED, f"{address} leads nowhere: {error}") from error
    failure: OSError = TimeoutError()
    for family, kind, protocol, _, place in found:
        left = deadline - time.monotonic()
        if left <= 0:
            break
        try:
            return _connected_to(place, socket.socket(family, kind, protocol), left)
        except OSError as error:
            failure = error
    if isinstance(failure, TimeoutError):
        raise PeerUnreachable(Reason.TIMEOUT, f"{address} did not accept a connection in time") from failure
    raise PeerUnreachable(Reason.REFUSED, f"{address} does not accept connections: {failure.strerror}") from failure


def _connected_to(place: _Place, connecting: socket.socket, timeout_s: float) -> socket.socket:
    """The socket, connected to a place of its address family. Raises OSError, and closes the socket then."""
    try:
        connecting.settimeout(timeout_s)
        connecting.connect(place)
    except BaseException:
        connecting.close()
        raise
    return connecting
