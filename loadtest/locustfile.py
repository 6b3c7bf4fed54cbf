"""``locust -f loadtest/locustfile.py``: what Locust loads."""

from loadtest import hooks
from loadtest.user import QueryUser

__all__ = ["QueryUser", "hooks"]
