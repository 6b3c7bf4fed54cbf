"""The open connections of a server's process, bounded by its limit of open files."""

import asyncio
import resource


def most_connections() -> int:
    """Half of the files that this process may open. The rest is for those that are accepted at once, and for files."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 2**20 if soft == resource.RLIM_INFINITY else max(1, soft // 2)


class Connections:
    """Keeps at most ``most`` connections, by ending those that wait for a request: the longest wait first.

    So however many connections strangers open, one more is always accepted, and has time to send its request. Whose
    connections wait is not asked: behind a proxy, all have one address.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._open: set[asyncio.Transport] = set()
        # In the order in which their waits began.
        self._waiting: dict[asyncio.Transport, None] = {}

    def __len__(self) -> int:
        return len(self._open)

    def opened(self, transport: asyncio.Transport) -> None:
        """Count a new connection, which waits for its first request."""
        self._open.add(transport)
        self._waiting[transport] = None
        while len(self._open) > self._most and self._waiting:
            longest = next(iter(self._waiting))
            self.lost(longest)
            longest.abort()

    def busy(self, transport: asyncio.Transport) -> None:
        """Keep a connection: its request has arrived."""
        self._waiting.pop(transport, None)

    def waits(self, transport: asyncio.Transport) -> None:
        """Note that a connection waits for its next request."""
        if transport in self._open:
            self._waiting[transport] = None

    def lost(self, transport: asyncio.Transport) -> None:
        """Forget a connection that has ended."""
        self._open.discard(transport)
        self._waiting.pop(transport, None)
