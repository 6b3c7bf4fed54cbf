import asyncio
import sys

import pytest

from protocol.errors import ConfigError
from ragtree_lab.measuring.lmcache_server import has_lmcache, lmcache_server


async def _reachable(arguments):
    extra = arguments["kv_transfer_config"]["kv_connector_extra_config"]
    host = extra["lmcache.mp.host"].removeprefix("tcp://")
    try:
        _, writer = await asyncio.open_connection(host, extra["lmcache.mp.port"])
    except OSError:
        return False
    writer.close()
    return True


@pytest.mark.skipif(not has_lmcache(), reason="LMCache is not installed")
def test_a_server_runs_while_the_context_is_open():
    async def scenario():
        async with lmcache_server(0.01) as arguments:
            during = await _reachable(arguments)
        return arguments, during, await _reachable(arguments)

    arguments, during, after = asyncio.run(scenario())
    assert (during, after) == (True, False)
    assert arguments["kv_offloading_backend"] == "lmcache"


def test_a_server_that_ends_at_once_is_a_config_error(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/bin/false")

    async def scenario():
        async with lmcache_server(0.01):
            pass

    with pytest.raises(ConfigError, match="LMCache's server does not start"):
        asyncio.run(scenario())
