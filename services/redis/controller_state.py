"""The controller's snapshot in Redis: the directory of KV and how often it was used."""

from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import structlog
from msgspec.structs import replace
from prometheus_client import CollectorRegistry

from cachectl.settings import MOST_SHARDS
from cachectl.sharding.controller_shard import WHOLE, ControllerShard
from cachectl.tree.snapshot import DeletionRecord, NodeRecord, NoStore, Snapshot, SnapshotStore
from protocol.generation import ServedAdapter
from protocol.retrieval import Revisions
from services.redis.link import RedisAway, RedisLink, RedisMetrics, RedisSettings

_STORE = "controller"
_BATCH = 500
_NOTHING_KNOWN = Snapshot(places=())
"""No place is known, so nothing that any tier holds is believed."""

log = structlog.get_logger(__name__)


class _Rest(msgspec.Struct, frozen=True):
    """The part of a snapshot besides its nodes."""

    tick: int
    deletions: tuple[DeletionRecord, ...]
    places: tuple[str, ...] | None = None
    shards: int = 1
    forgotten: Revisions = ()
    added: dict[str, ServedAdapter] | None = None


class RedisControllerState:
    """``cachectl.tree.snapshot.SnapshotStore`` as a hash of nodes, ``<prefix>:kv:nodes``, and a value beside it.

    Shards but the first one have ``<prefix>:kv-<number>`` instead of ``<prefix>:kv``. With another number of
    shards, nothing is known: what a shard holds was another one's.

    A full snapshot is written under another key and renamed in one step. A change is written in several steps, each of
    them atomic. Every record is valid by itself, so a reader may see some steps without the others.
    """

    keeps = True

    def __init__(self, link: RedisLink, prefix: str, shard: ControllerShard = WHOLE) -> None:
        self._link = link
        self._prefix = prefix
        self._shard = shard
        self._nodes, self._anew, self._others = _keys(prefix, shard.number)

    async def load(self) -> Snapshot:
        """Return the last snapshot. Returns an empty one if Redis is down or its content cannot be read."""
        client = self._link.client
        try:
            others: Any = await self._link.call(_STORE, lambda: client.get(self._others))
            nodes: dict[str, NodeRecord] = {}
            cursor: int | None = None
            while cursor != 0:
                cursor, some = await self._scan(cursor or 0)
                nodes |= {key.decode(): msgspec.msgpack.decode(node, type=NodeRecord) for key, node in some.items()}
            if self._shard.number == 0:
                await self._forget_shards()
            if others is None:
                return Snapshot() if self._shard.number == 0 else _NOTHING_KNOWN
            known = msgspec.msgpack.decode(others, type=_Rest)
            if known.shards != self._shard.count:
                log.warning("the number of controllers has changed, and all KV is dropped", before=known.shards)
                return replace(_NOTHING_KNOWN, added=known.added)
            return Snapshot(known.tick, nodes, known.deletions, known.places, known.forgotten, known.added)
        except RedisAway:
            log.warning("the previous controller's state is not available: Redis is down")
        except msgspec.MsgspecError as error:
            log.warning("the previous controller's state cannot be read", error=str(error))
        return Snapshot()

    async def keep(self, before: Snapshot, now: Snapshot) -> bool:
        """Replace the snapshot ``before`` by ``now``; write all of it if ``before`` is empty.

        Return False if Redis is down.
        """
        try:
            if before.nodes or before.tick:
                changed = {key: node for key, node in now.nodes.items() if before.nodes.get(key) != node}
                await self._put(self._nodes, changed)
                await self._remove(before.nodes.keys() - now.nodes.keys())
            else:
                await self._link.call(_STORE, lambda: self._link.client.delete(self._anew))
                await self._put(self._anew, now.nodes)
                # Redis has no empty hashes, so there is nothing to rename for an empty snapshot.
                swap = self._link.client.rename(self._anew, self._nodes) if now.nodes else None
                await self._link.call(_STORE, lambda: swap or self._link.client.delete(self._nodes))
            rest = _Rest(now.tick, now.deletions, now.places, self._shard.count, now.forgotten, now.added)
            others = msgspec.msgpack.encode(rest)
            await self._link.call(_STORE, lambda: self._link.client.set(self._others, others))
        except RedisAway:
            return False
        return True

    async def _forget_shards(self) -> None:
        """Delete what former shards have left. It would be out of date if their number rose again."""
        gone = [key for number in range(self._shard.count, MOST_SHARDS) for key in _keys(self._prefix, number)]
        if gone:
            await self._link.call(_STORE, lambda: self._link.client.delete(*gone))

    async def _scan(self, cursor: int) -> tuple[int, dict[bytes, bytes]]:
        found: Any = await self._link.call(_STORE, lambda: self._link.client.hscan(self._nodes, cursor, count=_BATCH))
        after, some = found
        return after, some

    async def _put(self, key: str, nodes: Mapping[str, NodeRecord]) -> None:
        for some in _batches(nodes):
            fields = {name: msgspec.msgpack.encode(nodes[name]) for name in some}
            await self._link.call(_STORE, lambda fields=fields: self._link.client.hset(key, mapping=fields))  # type: ignore[misc]

    async def _remove(self, names: Iterable[str]) -> None:
        for some in _batches(names):
            await self._link.call(_STORE, lambda some=some: self._link.client.hdel(self._nodes, *some))  # type: ignore[misc]


def _keys(prefix: str, shard: int) -> tuple[str, str, str]:
    """The keys of the nodes, of the nodes that are being written anew, and of all else."""
    part = f"{prefix}:kv-{shard}" if shard else f"{prefix}:kv"
    return f"{part}:nodes", f"{part}:nodes:anew", f"{part}:others"


def _batches(names: Iterable[str]) -> Iterable[list[str]]:
    every = list(names)
    return (every[begin : begin + _BATCH] for begin in range(0, len(every), _BATCH))


@asynccontextmanager
async def controller_state(settings: RedisSettings, shard: ControllerShard = WHOLE) -> AsyncIterator[SnapshotStore]:
    """Open the store of a controller's snapshot: Redis if configured, else one that stores nothing."""
    if settings.url is None:
        yield NoStore()
        return
    # The controller's process is not scraped. The gateways export whether Redis is up.
    link = RedisLink(settings, RedisMetrics(CollectorRegistry()))
    async with link.watched():
        yield RedisControllerState(link, settings.prefix, shard)
