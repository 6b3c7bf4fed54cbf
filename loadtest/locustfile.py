"""``locust -f loadtest/locustfile.py``: the entry point of Locust."""

from loadtest import locust_hooks
from loadtest.locust_user import QueryUser

__all__ = ["QueryUser", "locust_hooks"]
