import json

import pytest
from msgspec import UNSET

from protocol.documents import MOST_TRIPLETS
from protocol.errors import (
    BrokenDocument,
    EncryptedDocument,
    IdempotencyMismatch,
    InvalidRequest,
    StorageFull,
    Unavailable,
)
from protocol.graph import Triplet

HERE = "/v1/collections/default/documents"


def shape(answer) -> dict:
    (error,) = answer.json().values()
    assert set(error) == {"message", "type", "param", "code"}
    return error


async def test_raw_document(served):
    answer = await served.client.put(
        f"{HERE}/guide",
        content=b"Hello.",
        headers={"Content-Type": "Text/Markdown; charset=utf-8", "Idempotency-Key": "once"},
        params={"filename": "guide.md", "title": "Guide", "attributes": json.dumps({"lang": "en", "n": 1, "ok": True})},
    )
    assert answer.status_code == 202
    assert answer.headers["location"] == "/v1/jobs/job-1"
    assert answer.json()["status"] == "queued"
    ((tenant, collection, upload, key),) = served.stack.retriever.uploads
    assert (tenant, collection, key) == ("default", "default", "once")
    assert (upload.document_id, upload.content, upload.media_type) == ("guide", b"Hello.", "text/markdown")
    assert (upload.filename, upload.title) == ("guide.md", "Guide")
    assert upload.attributes == {"lang": "en", "n": 1.0, "ok": True}


async def test_json_document(served):
    body = {"text": "Héllo.", "filename": "a.txt", "title": "A", "attributes": {"lang": "en"}}
    assert (await served.client.put(f"{HERE}/a", json=body)).status_code == 202
    ((_, _, upload, _),) = served.stack.retriever.uploads
    assert (upload.content, upload.media_type) == ("Héllo.".encode(), "text/plain")
    assert (upload.filename, upload.title, upload.attributes) == ("a.txt", "A", {"lang": "en"})


async def test_triplets_of_a_json_document(served):
    triplets = [{"head": "Marie Curie", "relation": "born in", "tail": "Warsaw"}]
    long = "ä\n" * 20_000
    for body in ({"text": long, "triplets": triplets}, {"text": "x", "triplets": []}, {"text": "x"}):
        assert (await served.client.put(f"{HERE}/a", json=body)).status_code == 202
    uploads = [upload for _, _, upload, _ in served.stack.retriever.uploads]
    assert [upload.content.decode() for upload in uploads] == [long, "x", "x"]
    given, *without = [upload.triplets for upload in uploads]
    assert given == (Triplet("Marie Curie", "born in", "Warsaw"),)
    assert without == [UNSET, UNSET]


@pytest.mark.parametrize(
    ("triplets", "param"),
    [
        (None, "triplets"),
        (["Marie"], "triplets.0"),
        ([{"head": "a", "relation": "r"}], "triplets.0.tail"),
        ([{"head": "a", "relation": "r", "tail": "b"}, {"head": 1, "relation": "r", "tail": "b"}], "triplets.1.head"),
        ([{"head": "a", "relation": "r", "tail": "b", "weight": 1}], "triplets.0.weight"),
        ([{"head": "a", "relation": "r", "tail": "b"}] * (MOST_TRIPLETS + 1), "triplets"),
    ],
)
async def test_triplets_of_another_form_are_refused(served, triplets, param):
    answer = await served.client.put(f"{HERE}/a", json={"text": "x", "triplets": triplets})
    assert (answer.status_code, shape(answer)["code"], shape(answer)["param"]) == (422, "invalid_value", param)
    assert served.stack.retriever.uploads == []


async def test_triplets_that_name_nothing_are_refused_by_their_place(served):
    served.stack.phases.failing["put"] = InvalidRequest("triplets[2].head is empty", param="triplets[2].head")
    answer = await served.client.put(f"{HERE}/a", json={"text": "x", "triplets": []})
    assert (answer.status_code, shape(answer)["param"]) == (400, "triplets[2].head")


@pytest.mark.parametrize("given", ["a/b.c", "a%2Fb.c"])
async def test_ids_with_slashes(served, given: str):
    headers = {"Content-Type": "text/plain"}
    assert (await served.client.put(f"{HERE}/{given}", content=b"x", headers=headers)).status_code == 202
    assert served.stack.retriever.uploads[0][2].document_id == "a/b.c"


@pytest.mark.parametrize(
    "path",
    [
        f"{HERE}/a%00b",
        f"{HERE}/a%0Ab",
        f"{HERE}/a%0A",
        f"{HERE}/a%1Fb",
        f"{HERE}/{'x' * 513}",
        "/v1/collections/a%20b/documents/x",
        "/v1/collections/a%0A/documents/x",
    ],
)
async def test_invalid_names(served, path: str):
    answer = await served.client.put(path, content=b"x", headers={"Content-Type": "text/plain"})
    assert (answer.status_code, shape(answer)["code"]) == (422, "invalid_value")


@pytest.mark.parametrize("path", [f"{HERE}/a%0Ab", f"{HERE}/a%0Ab/chunks/1", "/v1/admin/cache/documents/a%0Ab"])
async def test_line_breaks_are_refused_everywhere(served, path: str):
    call = served.client.delete if "admin" in path else served.client.get
    answer = await call(path)
    assert (answer.status_code, shape(answer)["code"]) == (422, "invalid_value")


@pytest.mark.parametrize(
    ("content", "content_type", "status", "code"),
    [
        (b"  ", "text/plain", 422, "empty_document"),
        (b"\xff\xfe", "text/plain", 400, "invalid_encoding"),
        (b"GIF89a", "image/gif", 415, "unsupported_media_type"),
        (b"x", "", 415, "unsupported_media_type"),
        (b'{"text": "\xff"}', "application/json", 400, "invalid_encoding"),
        (b'{"text": "x", "title": "\xff"}', "application/json", 400, "invalid_encoding"),
        (b'{"text": ', "application/json", 400, "invalid_json"),
        (b'{"text": 7}', "application/json", 422, "invalid_value"),
        (b'{"text": "\\ud800"}', "application/json", 400, "invalid_json"),
        (b'{"text": "x", "tenant": "y"}', "application/json", 422, "invalid_value"),
        (b'{"text": "x", "attributes": {"a": [1]}}', "application/json", 422, "invalid_value"),
        (b'{"text": ""}', "application/json", 422, "empty_document"),
    ],
)
@pytest.mark.parametrize("is_long", [False, True])
async def test_unreadable_documents(served, content, content_type, status, code, is_long):
    if is_long:
        # Long JSON is taken apart before it is validated.
        content = content.replace(b"{", b"{" + b" " * 2**16, 1)
    answer = await served.client.put(f"{HERE}/a", content=content, headers={"Content-Type": content_type})
    assert (answer.status_code, shape(answer)["code"]) == (status, code)
    assert served.stack.retriever.uploads == []


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (EncryptedDocument("It asks for a password."), 422),
        (BrokenDocument("It does not parse."), 422),
        (StorageFull("The disk is full."), 507),
        (IdempotencyMismatch("Used before."), 409),
        (Unavailable("Restarting."), 503),
    ],
)
async def test_errors_of_the_retriever(served, error, status: int):
    served.stack.phases.failing["put"] = error
    answer = await served.client.put(f"{HERE}/a", content=b"%PDF-", headers={"Content-Type": "application/pdf"})
    assert (answer.status_code, shape(answer)["code"]) == (status, error.code)


@pytest.mark.parametrize("attributes", ["{", "[]", '{"a": {}}', '{"a": null}', "\ufffd", '{"": 1}'])
async def test_invalid_attributes(served, attributes: str):
    headers = {"Content-Type": "text/plain"}
    answer = await served.client.put(f"{HERE}/a", content=b"x", headers=headers, params={"attributes": attributes})
    assert answer.status_code == 422
    assert shape(answer)["param"].startswith("attributes")


@pytest.mark.parametrize("key", ["", "a b", "x" * 256])
async def test_invalid_idempotency_keys(served, key: str):
    headers = {"Content-Type": "text/plain", "Idempotency-Key": key}
    assert (await served.client.put(f"{HERE}/a", content=b"x", headers=headers)).status_code == 422


async def test_batch(served):
    lines = b'{"id": "a", "text": "x"}\n{"id": "b", "text": "y"}\n'
    headers = {"Content-Type": "application/x-ndjson"}
    answer = await served.client.post(f"{HERE}:batch", content=lines, headers=headers)
    assert (answer.status_code, answer.headers["location"]) == (202, "/v1/jobs/job-1")
    assert served.stack.retriever.batches == [lines]
    answer = await served.client.post(f"{HERE}:batch", json=[])
    assert (answer.status_code, shape(answer)["code"]) == (415, "unsupported_media_type")


async def test_get_document(served):
    answer = await served.client.get(f"{HERE}/d1")
    assert answer.status_code == 200
    assert (answer.json()["document_id"], answer.json()["text"]) == ("d1", "document number 1")
    assert shape(await served.client.get(f"{HERE}/none"))["code"] == "unknown_document"
    assert shape(await served.client.get("/v1/collections/none/documents/d1"))["code"] == "unknown_collection"


async def test_delete_document(served):
    assert (await served.client.delete(f"{HERE}/d1")).json()["deleted"] is True
    answer = await served.client.delete(f"{HERE}/none")
    assert (answer.status_code, shape(answer)["code"]) == (404, "unknown_document")


async def test_list_documents_by_page(served):
    ids, after = [], None
    for _ in range(3):
        params = {"limit": 2} | ({"after": after} if after else {})
        page = (await served.client.get(HERE, params=params)).json()
        ids += [document["document_id"] for document in page["data"]]
        after = page["next_cursor"]
        assert page["has_more"] == (after is not None)
    assert ids == ["d0", "d1", "d2", "d3", "d4"]
    assert after is None


@pytest.mark.parametrize("limit", [0, -1, 101, "many"])
async def test_invalid_page_sizes(served, limit):
    answer = await served.client.get(HERE, params={"limit": limit})
    assert (answer.status_code, shape(answer)["param"]) == (422, "limit")


async def test_unknown_cursor(served):
    answer = await served.client.get(HERE, params={"after": "x"})
    assert (answer.status_code, shape(answer)["param"]) == (400, "after")


async def test_405_lists_all_methods_of_the_path(served):
    answer = await served.client.patch(f"{HERE}/a")
    assert (answer.status_code, shape(answer)["code"]) == (405, "method_not_allowed")
    assert answer.headers["allow"] == "DELETE, GET, PUT"


async def test_collections(served):
    listed = (await served.client.get("/v1/collections")).json()
    assert {entry["name"]: entry["documents"] for entry in listed["data"]} == {"default": 5, "empty": 0}


async def test_job_has_its_last_error(served):
    job = (await served.client.get("/v1/jobs/job-1")).json()
    assert (job["status"], job["failed_documents"]) == ("failed", 1)
    assert job["last_error"] == job["errors"][-1]
    assert job["last_error"]["code"] == "broken_document"
    assert shape(await served.client.get("/v1/jobs/none"))["code"] == "unknown_job"


async def test_put_collection_creates_it_or_changes_how_it_is_searched(served):
    answer = await served.client.put("/v1/collections/news", json={"search": "sparse"})
    assert (answer.status_code, answer.json()) == (
        200,
        {"name": "news", "documents": 0, "chunks": 0, "search": "sparse", "graph": "none"},
    )
    answer = await served.client.put("/v1/collections/default", json={})
    assert (answer.json()["documents"], answer.json()["search"]) == (5, None)


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [("news", {"search": "fuzzy"}, "search"), ("news", {"kind": "dense"}, "kind"), ("a%20b", {}, "collection")],
)
async def test_invalid_collections_are_refused(served, path, body, param):
    answer = await served.client.put(f"/v1/collections/{path}", json=body)
    assert (answer.status_code, shape(answer)["param"]) == (422, param)
