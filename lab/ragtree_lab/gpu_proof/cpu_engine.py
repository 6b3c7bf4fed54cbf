"""An engine on this machine's CPU, in a process of another interpreter, for checks that share its KV.

Usage: python -m ragtree_lab.gpu_proof.cpu_engine FILE, with a ``Task`` as JSON in the file. It serves one client.
"""

import asyncio
import os
import subprocess
import sys
from contextlib import suppress
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any

import msgspec

from protocol.kv import LostCopy, Orders
from protocol.plans import PrefillPlan
from ragtree_lab.gpu_proof.answers import Answer
from ragtree_lab.gpu_proof.checked_engine import CheckedEngine
from ragtree_lab.gpu_proof.process import Task

LONGEST = 2560
"""Tokens of the longest prompt, of a step, and a third of those in the KV cache, here and on the GPU."""

_HOST_GIB = 0.5
_LOOK_S = 0.1
_CLOSE_S = 10.0


def sharing_engine(task: Task) -> CheckedEngine:
    """An engine of a task, with the places that the other one has, too."""
    return CheckedEngine(task, LONGEST, 3 * LONGEST, LONGEST, _HOST_GIB)


class CpuEngine:
    """The engine of a task, without its ``engine_args``, in a process of the ``interpreter``."""

    def __init__(self, task: Task, interpreter: str) -> None:
        self._task = msgspec.structs.replace(
            task, group=msgspec.structs.replace(task.group, settings={**task.group.settings, "engine_args": {}})
        )
        self._interpreter = interpreter
        self._process: subprocess.Popen[bytes] | None = None
        self._link: Connection | None = None

    async def start(self) -> None:
        """Start it, and wait until it answers. Raises ValueError if its process ends before."""
        file = self._task.scratch / "cpu-task"
        file.write_bytes(msgspec.json.encode(self._task))
        self._process = subprocess.Popen(  # noqa: ASYNC220, S603  # nosec B603  # it returns at once; our own command
            [self._interpreter, "-m", __name__, str(file)], env={**os.environ, "CUDA_VISIBLE_DEVICES": ""}
        )
        while self._link is None:
            if (status := self._process.poll()) is not None:
                raise ValueError(f"the engine on the CPU ended with exit status {status}")
            with suppress(FileNotFoundError, ConnectionRefusedError):
                self._link = Client(_address(self._task))
            await asyncio.sleep(_LOOK_S)

    async def ask(self, plan: PrefillPlan) -> Answer:
        """The greedy answer to a plan."""
        answer: Answer = await self._call("ask", plan)
        return answer

    async def carry_out(self, orders: Orders) -> tuple[LostCopy, ...]:
        """Carry out orders; what could not be copied is returned."""
        lost: tuple[LostCopy, ...] = await self._call("carry_out", orders)
        return lost

    async def fingerprint(self) -> str:
        """The fingerprint of its KV."""
        return str(await self._call("fingerprint"))

    async def close(self) -> None:
        """End it."""
        if self._link is not None:
            self._link.close()
        if self._process is not None:
            try:
                await asyncio.to_thread(self._process.wait, _CLOSE_S)
            except subprocess.TimeoutExpired:
                self._process.kill()

    async def _call(self, method: str, *arguments: object) -> Any:  # noqa: ANN401 - whatever the method returns
        return await asyncio.to_thread(self._exchange, (method, arguments))

    def _exchange(self, request: tuple[str, tuple[object, ...]]) -> Any:  # noqa: ANN401
        if self._link is None:
            raise ValueError("the engine on the CPU has not started")
        self._link.send(request)
        result, error = self._link.recv()
        if error:
            raise ValueError(f"the engine on the CPU: {error}")
        return result


async def _serve(task: Task) -> None:
    engine = sharing_engine(task)
    try:
        await engine.get()
        with Listener(_address(task)) as listener, listener.accept() as link:
            while True:
                try:
                    method, arguments = await asyncio.to_thread(link.recv)
                except EOFError:
                    return
                try:
                    answer = await getattr(engine, method)(*arguments), ""
                except Exception as error:
                    answer = None, f"{type(error).__name__}: {error}"
                link.send(answer)
    finally:
        await engine.close()


def _address(task: Task) -> str:
    """A socket in a folder that is the user's own."""
    return str(task.scratch / "cpu-engine")


if __name__ == "__main__":
    asyncio.run(_serve(msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=Task)))
