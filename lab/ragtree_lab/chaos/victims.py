"""The kinds of processes that are killed, and how to find and kill them."""

import time
from collections.abc import Sequence
from contextlib import suppress
from enum import StrEnum
from random import Random

import msgspec
import psutil

from loadtest.errors import LoadTestError
from ragtree_lab.chaos.redis_process import RedisProcess
from ragtree_lab.watched_stack import WatchedStack, process_title


class Victim(StrEnum):
    """A kind of process, and how it is killed."""

    GENERATOR = "generator"
    CONTROLLER = "controller"
    RETRIEVER = "retriever"
    SERVE_CONTROLLER = "serve-controller"
    GATEWAY = "gateway"
    """A replica behind Serve's proxy."""
    PROXY = "proxy"
    REDIS = "redis"
    REDIS_HANGS = "redis-hangs"
    """Paused, not killed: connections stay open but nothing is answered."""


TITLES = {
    Victim.GENERATOR: "ServeReplica:generator",
    Victim.CONTROLLER: "ServeReplica:controller",
    Victim.RETRIEVER: "ServeReplica:retriever",
    Victim.SERVE_CONTROLLER: "ServeController",
    Victim.GATEWAY: "ServeReplica:gateway",
    Victim.PROXY: "ProxyActor",
}
"""Substrings of the titles of Ray's processes."""

HOLDING_CONNECTIONS = frozenset({Victim.GATEWAY, Victim.PROXY})
"""These hold the connections of requests, which break with them."""


class Kill(msgspec.Struct, kw_only=True):
    """A process that was killed ``at`` a time.

    ``recovered`` is when the first of the good checks in a row ended, and ``confirmed`` is when the last one did. Until
    then another gateway may still have been affected. Both are None if the stack never recovered.
    """

    victim: Victim
    pid: int
    signal: str
    at: float
    recovered: float | None = None
    confirmed: float | None = None


class Victims:
    """The processes of a stack and its Redis. ``away_s`` is how long Redis stays away."""

    def __init__(self, stack: WatchedStack, redis: RedisProcess, away_s: float, draws: Random) -> None:
        self._stack = stack
        self._redis = redis
        self._away_s = away_s
        self._draws = draws

    def alive(self, victim: Victim) -> Sequence[int]:
        """Return the ids of the running processes of a kind."""
        if victim not in TITLES:
            return [] if self._redis.is_away else [self._redis.pid]
        return [process.pid for process in self._stack.processes() if TITLES[victim] in process_title(process)]

    def kill(self, victim: Victim) -> Kill:
        """Kill a random process of a kind. Raises LoadTestError if there is none."""
        alive = self.alive(victim)
        if not alive:
            raise LoadTestError(f"no {victim} process is running")
        pid = self._draws.choice(alive)
        at = time.monotonic()
        if victim is Victim.REDIS_HANGS:
            self._redis.hang(self._away_s)
            return Kill(victim=victim, pid=pid, signal="SIGSTOP", at=at)
        if victim is Victim.REDIS:
            self._redis.kill(self._away_s)
        else:
            # The process may just have ended by itself.
            with suppress(psutil.NoSuchProcess):
                psutil.Process(pid).kill()
        return Kill(victim=victim, pid=pid, signal="SIGKILL", at=at)
