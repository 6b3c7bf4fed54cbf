"""What goes wrong with a link: it is slow, it breaks in the middle of a reply, or it flips bits."""

import asyncio
import time


class Slow:
    """All connections together pass on ``bytes_per_s``."""

    def __init__(self, bytes_per_s: float) -> None:
        self._bytes_per_s = bytes_per_s
        self._free_at = 0.0

    async def passed_on(self, chunk: bytes, at: int) -> bytes:  # noqa: ARG002
        """The chunk, when the link has carried it."""
        now = time.monotonic()
        self._free_at = max(now, self._free_at) + len(chunk) / self._bytes_per_s
        await asyncio.sleep(self._free_at - now)
        return chunk


class Cut:
    """A connection ends when ``after`` bytes of a reply are there. Shorter replies pass."""

    def __init__(self, after: int) -> None:
        self._after = after

    async def passed_on(self, chunk: bytes, at: int) -> bytes:
        """The part of the chunk in front of the cut."""
        return chunk[: max(0, self._after - at)]


class Lying:
    """Byte number ``place`` of a reply, counted from 0, has one bit flipped. Shorter replies are true."""

    def __init__(self, place: int) -> None:
        self._place = place

    async def passed_on(self, chunk: bytes, at: int) -> bytes:
        """The chunk, with the flipped bit if that is in it."""
        place = self._place - at
        if not 0 <= place < len(chunk):
            return chunk
        return chunk[:place] + bytes([chunk[place] ^ 1]) + chunk[place + 1 :]
