"""The answers of a server to one peer's requests."""

import time
from collections.abc import Mapping

from xxhash import xxh3_64_intdigest

from generator.peers.errors import PeerUnreachable, Reason
from generator.peers.stream import Stream
from generator.peers.wire import REQUESTS, Head, ReadRequest, ReplyEnd, Status, encode_head, framed
from generator.tiers.base import KvBroken, KvMissing, KvTier, PageReader, TierUnavailable
from protocol.tiers import Tier

_MOST_DETAIL = 1000
"""The most characters of an error's message that are sent."""


class PageSender:
    """Sends pages of ``tiers`` over one connection, whose peer has authenticated.

    The connection ends after ``idle_s`` seconds without a request, or if a page is not taken within ``stalled_s``.
    """

    def __init__(self, stream: Stream, tiers: Mapping[Tier, KvTier], idle_s: float, stalled_s: float) -> None:
        self._stream = stream
        self._tiers = tiers
        self._idle_s = idle_s
        self._stalled_s = stalled_s

    def serve(self) -> None:
        """Answer requests until the peer goes or is idle. Raises PeerUnreachable if it goes during an answer."""
        while True:
            try:
                request = self._stream.receive_message(REQUESTS, time.monotonic() + self._idle_s)
            except PeerUnreachable as end:
                if end.reason is Reason.INCOMPATIBLE:
                    raise
                return
            # The tier has checked by then that the copy did not change while it was sent.
            outcome = self._answer(request)
            self._send([encode_head(Head.CLOSING), framed(outcome)])

    def _answer(self, request: ReadRequest) -> ReplyEnd:
        """Send the pages, and return how that ended."""
        tier = self._tiers.get(request.tier)
        if tier is None:
            return ReplyEnd(Status.MISSING, detail=f"{request.node} cannot be read: there is no {request.tier} tier")
        try:
            with tier.reading(request.node, request.pages) as reader:
                return self._send_pages(reader, request)
        except KvMissing as missing:
            return ReplyEnd(Status.MISSING, detail=_short(missing))
        except KvBroken as broken:
            return ReplyEnd(Status.BROKEN, broken.damage, _short(broken))
        except TierUnavailable as silent:
            # Nothing is known about the copy. The peer takes a cut connection for that.
            raise PeerUnreachable(Reason.CUT, _short(silent)) from silent

    def _send_pages(self, reader: PageReader, request: ReadRequest) -> ReplyEnd:
        # Page by page, because a page is valid only until the next one is read.
        for index in range(request.first, request.first + request.count):
            try:
                page = reader.page(index)
            except IndexError as error:
                return ReplyEnd(Status.NO_SUCH_PAGE, detail=_short(error))
            self._send([encode_head(Head.PAGE, xxh3_64_intdigest(page.data)), page.data])
        return ReplyEnd(Status.OK)

    def _send(self, buffers: list[bytes | memoryview]) -> None:
        self._stream.send(buffers, time.monotonic() + self._stalled_s)


def _short(error: Exception) -> str:
    """The error's message, which may list the pages of the node, within the limit of a message."""
    return str(error)[:_MOST_DETAIL]
