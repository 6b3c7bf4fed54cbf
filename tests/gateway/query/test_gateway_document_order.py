"""The order of a prompt's documents, from the request to the controller."""

import pytest
from gateway_fakes import MODEL

from protocol.plans import DocumentOrder

CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "What is the capital?"}]}


@pytest.mark.parametrize("order", list(DocumentOrder))
@pytest.mark.parametrize(
    ("path", "body"), [("/query", {"query": "What?"}), ("/v1/chat/completions", CHAT)], ids=["query", "chat"]
)
async def test_request_sets_the_document_order(served, path, body, order):
    answer = await served.client.post(path, json=body | {"document_order": order.value})
    assert answer.status_code == 200
    assert served.stack.controller.admitted[-1].order is order


async def test_document_order_defaults_to_the_settings(in_process):
    async with in_process(default_document_order="canonical") as served:
        await served.client.post("/query", json={"query": "What?"})
        await served.client.post("/query", json={"query": "What?", "document_order": "retrieval"})
        orders = [request.order for request in served.stack.controller.admitted]
        assert orders == [DocumentOrder.CANONICAL, DocumentOrder.RETRIEVAL]


async def test_unknown_document_order_is_refused(served):
    answer = await served.client.post("/query", json={"query": "What?", "document_order": "random"})
    assert answer.status_code == 422
    assert answer.json()["error"]["param"] == "document_order"
    assert served.stack.controller.admitted == []


async def test_sources_keep_the_order_of_the_search(served):
    answer = await served.client.post("/query", json={"query": "What?", "document_order": "canonical", "top_k": 3})
    reply = answer.json()
    assert [result["document_id"] for result in reply["results"]] == ["d0", "d1", "d2"]
    assert [cited["index"] for cited in reply["citations"]] == [0, 1, 2]


async def test_the_controller_learns_the_scores_of_the_documents(served):
    await served.client.post("/query", json={"query": "What?", "document_order": "cached-first", "top_k": 3})
    (admitted,) = served.stack.controller.admitted
    assert admitted.scores == (1.0, 0.9, 0.8)
