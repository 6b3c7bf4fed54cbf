"""The HTTP client of one request."""

from locust.clients import HttpSession
from locust.user.users import User
from urllib3 import PoolManager

from loadtest.stack_api import authorization


class OneRequestClient(HttpSession):
    """A client with a new connection, which ends when the client is closed.

    Clients that reuse connections trust the server's keep-alive and may find a connection closed when they need it.
    """

    def __init__(self, user: User) -> None:
        self._pools = PoolManager(maxsize=1)
        super().__init__(user.host, user.environment.events.request, user, pool_manager=self._pools)
        self.trust_env = False
        self.headers.update(authorization())

    def close(self) -> None:
        """Close the connection now. urllib3 would leave it to the garbage collector."""
        for key in self._pools.pools.keys():  # noqa: SIM118 - no mapping that can be iterated over
            self._pools.pools[key].close()
        super().close()
