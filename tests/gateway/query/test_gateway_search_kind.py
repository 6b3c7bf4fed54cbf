"""How documents are searched, from the request to the reply."""

import pytest
from gateway_fakes import MODEL, chunk

from gateway.wire.reply import search_results
from protocol.retrieval import CandidateSet, SearchKind

CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "What is the capital?"}]}


@pytest.mark.parametrize("kind", [None, *SearchKind])
@pytest.mark.parametrize(
    ("path", "body"), [("/query", {"query": "What?"}), ("/v1/chat/completions", CHAT)], ids=["query", "chat"]
)
async def test_request_sets_the_kind_of_search(served, path, body, kind):
    answer = await served.client.post(path, json=body | {"search": kind})
    assert answer.status_code == 200
    assert served.stack.retriever.requests[-1].search is kind


async def test_unknown_kind_of_search_is_refused(served):
    answer = await served.client.post("/query", json={"query": "What?", "search": "fuzzy"})
    assert (answer.status_code, answer.json()["error"]["param"]) == (422, "search")
    assert served.stack.retriever.requests == []


@pytest.mark.parametrize(
    ("kind", "dense", "sparse"),
    [
        (SearchKind.DENSE, [0.9, 0.8], [None, None]),
        (SearchKind.SPARSE, [None, None], [0.9, 0.8]),
        (SearchKind.HYBRID, [0.5, None], [None, 7.5]),
    ],
)
def test_results_show_the_scores_of_both_rankings(kind, dense, sparse):
    found = CandidateSet(
        1, 1, (chunk(0), chunk(1)), (0.9, 0.8), True, 1.0, kind, dense_scores=(0.5, None), sparse_scores=(None, 7.5)
    )
    results = search_results(found, "default")
    assert [result.score for result in results] == [0.9, 0.8]
    assert [result.dense_score for result in results] == dense
    assert [result.sparse_score for result in results] == sparse
