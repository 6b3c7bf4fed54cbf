"""Calls to one deployment, of which those of every query go over a connection to a replica.

A connection belongs to one replica. Ray Serve's handle asks for the address, so that Ray Serve chooses the replica. It
asks again once the connection is lost, or its replica stops.
"""

import asyncio
import contextvars
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from services.calls.connection import CallDropped, Connection
from services.calls.method import methods_of
from services.serve.caller import PATIENCE_S, DeploymentCaller

_PAUSE_S = 0.05


class ReplicaCaller:
    """Calls a ``contract`` of one deployment. What a replica does not serve over connections goes over the handle."""

    def __init__(self, deployment: DeploymentCaller, contract: type) -> None:
        self.app = deployment.app
        self._deployment = deployment
        self._contract = contract
        self._methods = methods_of(contract)
        self._connection: Connection | None = None
        self._connecting: asyncio.Task[Connection] | None = None

    def at(self, instance: str) -> "ReplicaCaller":
        """Return a caller of one replica of the generator."""
        return ReplicaCaller(self._deployment.at(instance), self._contract)

    async def call(self, method: str, *arguments: object, **named: object) -> Any:  # noqa: ANN401 - the method's
        """Return the method's result. Raises what the method raises, or the part's error if no replica answers."""
        if method in self._methods:
            direct = self._methods[method]
            try:
                encoded = direct.takes.encode(arguments, named)
                while method in (connection := await self._connected()).methods:
                    try:
                        return direct.gives.decode(await connection.call(method, encoded))
                    except CallDropped as dropped:
                        self._leave(connection, dropped)
            except Exception as error:
                raise self._deployment.translated(error) from error
        return await self._deployment.call(method, *arguments, **named)

    async def stream(self, method: str, *arguments: object, **named: object) -> AsyncGenerator[Any, None]:
        """Yield what the method yields. Closing the iterator cancels the method. Raises as ``call`` does."""
        if method in self._methods:
            direct = self._methods[method]
            try:
                encoded = direct.takes.encode(arguments, named)
                while method in (connection := await self._connected()).methods:
                    try:
                        async with aclosing(connection.stream(method, encoded)) as items:
                            async for item in items:
                                yield direct.gives.decode(item)
                        return
                    except CallDropped as dropped:
                        self._leave(connection, dropped)
            except Exception as error:
                raise self._deployment.translated(error) from error
        async with aclosing(self._deployment.stream(method, *arguments, **named)) as items:
            async for item in items:
                yield item

    async def ready(self) -> None:
        """Return when a replica says that it is ready. Raises as ``DeploymentCaller.ready`` does."""
        await self._deployment.ready()

    def _leave(self, connection: Connection, dropped: CallDropped) -> None:
        """Ask for a replica again at the next call. Raises CallDropped if the dropped one cannot be repeated."""
        connection.leave()
        if dropped.begun:
            raise dropped

    async def _connected(self) -> Connection:
        if self._connection is None or not self._connection.usable:
            if self._connecting is None or self._connecting.done():
                # Calls share it, and each may be cancelled, also by Ray Serve, which knows a call by its context.
                self._connecting = asyncio.create_task(self._connect(), context=contextvars.Context())
            return await asyncio.shield(self._connecting)
        return self._connection

    async def _connect(self) -> Connection:
        until = time.monotonic() + PATIENCE_S
        while True:
            try:
                self._connection = await Connection.open(await self._deployment.call("address"))
            except OSError as error:
                # Ray Serve notices a moment later than we do that a replica stops.
                if time.monotonic() > until:
                    raise CallDropped(begun=False) from error
                await asyncio.sleep(_PAUSE_S)
            else:
                return self._connection
