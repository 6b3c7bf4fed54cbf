"""The generator's replica, without Ray."""

import os
from types import SimpleNamespace

from services.config import Config
from services.serve import deployments
from services.serve.deployments import GeneratorDeployment


class Factory:
    """Notes how many threads the environment allows when the engine is made."""

    def __init__(self) -> None:
        self.threads: str | None = "not asked"

    def engine(self, _instance: str) -> "Factory":
        self.threads = os.environ.get("OMP_NUM_THREADS")
        return self

    async def start(self) -> None:
        """Start at once."""


async def test_the_thread_that_ray_allows_a_replica_is_no_limit_of_its_engine(monkeypatch):
    factory = Factory()
    replica = SimpleNamespace(replica_id=SimpleNamespace(unique_id="one"))
    monkeypatch.setattr(deployments.serve, "get_replica_context", lambda: replica)
    monkeypatch.setattr(deployments, "generator_factory", lambda _config, _host: factory)
    monkeypatch.setattr(deployments, "get_node_ip_address", lambda: "127.0.0.1")
    # Ray sets it in every worker process that reserves no CPUs.
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    made = object.__new__(GeneratorDeployment)
    await GeneratorDeployment.__init__(made, Config())
    assert factory.threads is None
