"""Sends kept inputs again, one at a time, and says which of them still break something."""

import asyncio
import time
from collections.abc import Sequence
from typing import NamedTuple

from ragtree_lab.fuzz.keeper import Finding
from ragtree_lab.fuzz.requests import Drawn
from ragtree_lab.fuzz.sender import Sender
from ragtree_lab.fuzz.verdicts import faults
from ragtree_lab.fuzz.watcher import Watcher

_SETTLED_S = 3.0
"""So long after an input it is known whether a process ended by it."""
_RECOVERY_S = 600.0


class Repeated(NamedTuple):
    """An input that was sent again, what it broke now, and how its requests were answered."""

    drawn: Drawn
    broke: tuple[str, ...]
    answers: tuple[str, ...]


class Replay:
    """Sends inputs with ``sender`` to the stack that ``watcher`` watches."""

    def __init__(self, sender: Sender, watcher: Watcher) -> None:
        self._sender = sender
        self._watcher = watcher

    async def repeat(self, findings: Sequence[Finding]) -> list[Repeated]:
        """Send each input of the findings once."""
        drawn = {(each.source, each.number): each for finding in findings for each in finding.inputs}
        return [await self._once(each) for each in drawn.values()]

    async def _once(self, drawn: Drawn) -> Repeated:
        await self._watcher.until_ready(_RECOVERY_S)
        begun = time.monotonic()
        requests = drawn.input.requests

        async def send(number: int) -> tuple[list[str], str]:
            await asyncio.sleep(requests[number].starts_s)
            outcome = await self._sender.send(requests[number])
            said = " ".join(f"HTTP {answer.status}" for answer in outcome.answers) or str(outcome.end)
            return list(faults(requests[number], outcome)), f"{said} after {outcome.seconds:.1f} s"

        sent = await asyncio.gather(*(send(number) for number in range(len(requests))))
        await asyncio.sleep(_SETTLED_S)
        broke = [fault for found, _ in sent for fault in found]
        if self._watcher.died_since(begun):
            broke.insert(0, "a process ended")
        return Repeated(drawn, tuple(dict.fromkeys(broke)), tuple(said for _, said in sent))
