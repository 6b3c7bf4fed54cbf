"""What can be killed, how it is found, and how it dies."""

import time
from collections.abc import Sequence
from contextlib import suppress
from enum import StrEnum
from random import Random

import msgspec
import psutil

from loadtest.chaos.own_redis import OwnRedis
from loadtest.chaos.own_stack import OwnStack, called
from loadtest.errors import LoadTestError


class Victim(StrEnum):
    """A kind of process, and what becomes of it."""

    GENERATOR = "generator"
    CONTROLLER = "controller"
    RETRIEVER = "retriever"
    SERVE_CONTROLLER = "serve-controller"
    GATEWAY = "gateway"
    """A replica behind Serve's proxy."""
    PROXY = "proxy"
    REDIS = "redis"
    REDIS_HANGS = "redis-hangs"
    """It is stopped, not killed: connections stay, and nothing is answered."""


TITLES = {
    Victim.GENERATOR: "ServeReplica:generator",
    Victim.CONTROLLER: "ServeReplica:controller",
    Victim.RETRIEVER: "ServeReplica:retriever",
    Victim.SERVE_CONTROLLER: "ServeController",
    Victim.GATEWAY: "ServeReplica:gateway",
    Victim.PROXY: "ProxyActor",
}
"""What the titles of Ray's processes contain."""

HOLDING_CONNECTIONS = frozenset({Victim.GATEWAY, Victim.PROXY})
"""Requests die with these: they hold their connections."""


class Kill(msgspec.Struct, kw_only=True):
    """A process that was killed ``at`` a time, and when all was well again; None: it never was."""

    victim: Victim
    pid: int
    signal: str
    at: float
    recovered: float | None = None


class Victims:
    """The processes of a stack and its Redis; ``away_s`` is how long Redis is gone each time."""

    def __init__(self, stack: OwnStack, redis: OwnRedis, away_s: float, draws: Random) -> None:
        self._stack = stack
        self._redis = redis
        self._away_s = away_s
        self._draws = draws

    def alive(self, victim: Victim) -> Sequence[int]:
        """The ids of the processes of a kind that run now."""
        if victim not in TITLES:
            return [] if self._redis.is_away else [self._redis.pid]
        return [process.pid for process in self._stack.processes() if TITLES[victim] in called(process)]

    def kill(self, victim: Victim) -> Kill:
        """Kill one of a kind, by its id. Raises LoadTestError where there is none."""
        there = self.alive(victim)
        if not there:
            raise LoadTestError(f"there is no process to kill: {victim}")
        pid = self._draws.choice(there)
        at = time.monotonic()
        if victim is Victim.REDIS_HANGS:
            self._redis.hang(self._away_s)
            return Kill(victim=victim, pid=pid, signal="SIGSTOP", at=at)
        if victim is Victim.REDIS:
            self._redis.kill(self._away_s)
        else:
            # One that has gone by itself in this instant is lost all the same.
            with suppress(psutil.NoSuchProcess):
                psutil.Process(pid).kill()
        return Kill(victim=victim, pid=pid, signal="SIGKILL", at=at)
