"""A document between its loader and its row in the store."""

import msgspec
from blake3 import blake3

from protocol.filters import Attributes
from protocol.graph import Triplet


class IncomingDocument(msgspec.Struct, frozen=True):
    """A checked document that is not stored yet. Queued jobs keep it encoded as MessagePack.

    ``pages`` are the first lines of its pages, from 1; empty if it has none. ``triplets`` came with it.
    """

    document_id: str
    text: str
    filename: str
    title: str | None
    attributes: Attributes
    pages: tuple[int, ...] = ()
    triplets: tuple[Triplet, ...] = ()

    @property
    def content_hash(self) -> str:
        """The hash of everything a reader can see. An upload with an equal hash changes nothing."""
        seen = (self.text, self.filename, self.title, sorted(self.attributes.items()))
        # A document without triplets has the hash that earlier versions have stored.
        return blake3(msgspec.msgpack.encode((*seen, self.triplets) if self.triplets else seen)).hexdigest()
