"""The ways in which one or two machines serve queries.

- ``alone``: a stack on each machine, and queries go to them in turn, as a load balancer sends them.
- ``routed``: one stack, whose controller sends a query where its documents are, and whose machines read nothing of
  each other.
- ``shared``: the same, and machines read each other's KV.
- ``one``: one machine without the other.
- ``generator``: one machine answers, and the other one is a KV generator for the queries that wait for it.
"""

from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import NamedTuple

from cachectl.runtime.executor import LiveEngine
from cachectl.settings import ControllerSettings
from protocol.kv import Orders
from ragtree_lab.measuring.local_stack import LocalStack
from ragtree_lab.sharing.machines import TimedEngine
from ragtree_lab.sharing.readdressed_engine import ReaddressedEngine


class Way(NamedTuple):
    """How ``machines`` serve: ``balanced`` ones have a stack each, and others one; the last one may generate KV."""

    machines: int = 2
    balanced: bool = False
    reading: bool = False
    generating: bool = False


WAYS = {
    "alone": Way(balanced=True),
    "routed": Way(),
    "shared": Way(reading=True),
    "one": Way(machines=1),
    "generator": Way(reading=True, generating=True),
}


class Stacks:
    """Serves in each of the ways over one engine a machine. Missing cost profiles are measured, into ``profiles``."""

    def __init__(self, engines: Mapping[str, TimedEngine], profiles: Path) -> None:
        self._engines = engines
        self._profiles = profiles

    @asynccontextmanager
    async def serving(self, way: Way, controller: ControllerSettings) -> AsyncGenerator[list[LocalStack]]:
        """Have the engines drop what they hold, and start the stacks of a way. Queries go to them in turn."""
        for engine in self._engines.values():
            await engine.carry_out(Orders(everything=True))
        names = list(self._engines)[: way.machines]
        seen: dict[str, LiveEngine] = {
            name: self._engines[name] if way.reading else ReaddressedEngine(self._engines[name]) for name in names
        }
        groups = [{name: seen[name]} for name in names] if way.balanced else [seen]
        generators = names[-1:] if way.generating else ()
        async with AsyncExitStack() as running:
            yield [
                await running.enter_async_context(
                    LocalStack.over(group, controller, self._profiles, kv_generators=generators)
                )
                for group in groups
            ]
