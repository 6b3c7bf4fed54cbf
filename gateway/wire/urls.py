"""Paths of documents and chunks, as replies link to them."""

from urllib.parse import quote

from protocol.retrieval import Chunk


def document_url(collection: str, document_id: str) -> str:
    """The path of a document."""
    return f"/v1/collections/{quote(collection, safe='')}/documents/{quote(document_id, safe='')}"


def chunk_url(collection: str, chunk: Chunk) -> str:
    """The path of a chunk. Another version of its document has other chunks."""
    return f"{document_url(collection, chunk.document_id)}/chunks/{quote(chunk.chunk_id, safe='')}"
