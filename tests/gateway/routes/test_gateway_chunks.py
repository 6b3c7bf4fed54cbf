"""``GET`` of a chunk, by the link that each result carries."""

import msgspec
import pytest
from gateway_fakes import chunk

from protocol.retrieval import DocumentChunks

HERE = "/v1/collections/default/documents"


async def test_links_of_results_lead_to_chunk_and_document(served):
    (result,) = (await served.client.post("/search", json={"query": "x", "top_k": 1})).json()["results"]
    found = await served.client.get(result["url"])
    assert found.json() == {
        "object": "chunk", "chunk_id": "d0#0", "document_id": "d0", "collection": "default", "filename": "d0.txt",
        "title": None, "index": 0, "lines": {"first": 1, "last": 2}, "pages": None, "attributes": {"lang": "en"},
        "text": result["text"], "url": result["url"], "document_url": result["document_url"],
    }  # fmt: skip
    document = (await served.client.get(result["document_url"])).json()
    assert (document["object"], document["document_id"]) == ("document", "d0")


@pytest.mark.parametrize(
    ("path", "code"),
    [
        (f"{HERE}/d0/chunks/7", "unknown_chunk"),
        (f"{HERE}/d9/chunks/7", "unknown_document"),
        ("/v1/collections/nowhere/documents/d0/chunks/7", "unknown_collection"),
    ],
)
async def test_unknown_names(served, path: str, code: str):
    answer = await served.client.get(path)
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, code)


async def test_ids_with_slashes(served, monkeypatch):
    retriever = served.stack.retriever
    stored, found = await retriever.get_document("default", "default", "d0"), chunk(0)

    async def get_document(tenant, collection, document_id):
        if document_id not in ("a/b", "a/b/chunks/1"):
            return await type(retriever).get_document(retriever, tenant, collection, document_id)
        return msgspec.structs.replace(stored, info=msgspec.structs.replace(stored.info, document_id=document_id))

    async def chunks(tenant, collection, document_id):
        numbered = (msgspec.structs.replace(found, document_id=document_id, chunk_id=number) for number in "123")
        return DocumentChunks(tuple(numbered), retriever.revision)

    monkeypatch.setattr(retriever, "get_document", get_document)
    monkeypatch.setattr(retriever, "chunks", chunks)
    for document in ("a/b", "a%2Fb"):
        reply = (await served.client.get(f"{HERE}/{document}/chunks/2")).json()
        assert (reply["object"], reply["document_id"], reply["chunk_id"]) == ("chunk", "a/b", "2")
        assert reply["url"] == f"{HERE}/a%2Fb/chunks/2"
        # A document of this very id stays within reach.
        reply = (await served.client.get(f"{HERE}/{document}/chunks/1")).json()
        assert (reply["object"], reply["document_id"]) == ("document", "a/b/chunks/1")
