"""The chunks of a document as donors: KV that composed prompts take over, computed before anybody has asked for it."""

from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import NamedTuple
from uuid import uuid4

from gateway.background.idle_prefill import IdlePrefill, Prefilled
from gateway.background.idle_time import IdleTime
from gateway.limits.auth import namespace_of
from gateway.query.laid_out import laid_out
from protocol.documents import DocumentInfo
from protocol.parts import Parts
from protocol.plans import AdmissionRequest, Reuse
from protocol.prompts import ChatMessage, Prompt
from protocol.retrieval import Chunk, StoreRevision

_PAGE = 100


class Donor(NamedTuple):
    """The last of ``chunks``, computed behind the others. Their store had them at a ``revision``."""

    tenant: str
    chunks: tuple[Chunk, ...]
    revision: StoreRevision

    @property
    def contents(self) -> tuple[str, ...]:
        """Contents of the chunks, in order."""
        return tuple(chunk.content_hash for chunk in self.chunks)


class Donors:
    """Finds the donors of documents, and prefills them while no query runs, as far as the tiers have room.

    Each chunk but a document's first is computed behind that one: KV that has seen other text answers better in a
    composed prompt than KV that has seen none (docs/composition.md).
    """

    def __init__(self, parts: Parts, idle: IdleTime, prefill: IdlePrefill) -> None:
        self._parts = parts
        self._idle = idle
        self._prefill = prefill

    async def documents(self, tenant: str, collection: str) -> AsyncIterator[DocumentInfo]:
        """Yield the documents of a collection, ordered by id. Raises UnknownCollection or Unavailable."""
        after: str | None = None
        while True:
            page = await self._parts.retriever.list_documents(tenant, collection, _PAGE, after)
            for document in page.documents:
                yield document
            after = page.next_cursor
            if after is None:
                return

    async def of_document(self, tenant: str, collection: str, document_id: str) -> Sequence[Donor]:
        """A document's donors, in order. Raises UnknownCollection, UnknownDocument or Unavailable."""
        document = await self._idle.spend(partial(self._parts.retriever.chunks, tenant, collection, document_id))
        first = document.chunks[:1]
        return [
            Donor(tenant, first if number == 0 else (*first, chunk), document.revision)
            for number, chunk in enumerate(document.chunks)
        ]

    async def prefill(self, donor: Donor) -> Prefilled:
        """Prefill a donor, unless something had to leave the tiers for it: nobody may ever ask for it.

        Raises what the parts raise, and DeadlineExceeded.
        """
        prompt = await laid_out(self._parts.layout, (ChatMessage("user", "?"),), donor.chunks, max_tokens=1)
        request = AdmissionRequest(
            f"donor_{uuid4().hex}",
            namespace_of(donor.tenant),
            Prompt(prompt.prefix),
            (donor.revision,),
            # Composed KV is not kept.
            reuse=Reuse.EXACT,
        )
        return await self._idle.spend(partial(self._prefill.attempt, request, evicting=False))
