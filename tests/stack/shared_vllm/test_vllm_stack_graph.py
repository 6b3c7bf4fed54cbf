"""Facts of a graph through the whole stack: under dependency attention, and in full if an answer is to be exact."""

import pytest
from stacks import until

pytestmark = [pytest.mark.ray, pytest.mark.vllm]

FAMILY = {
    "albert": "Albert Grant founded Acme Company. Albert Grant visited Vienna.",
    "bertha": "Bertha Grant married Albert Grant. Bertha Grant bought Acme Company.",
    "conrad": "Conrad Miller joined Acme Company. Conrad Miller visited Vienna.",
}
QUESTION = {
    "query": "Who founded Acme Company, and who visited Vienna?",
    "collection": "family",
    "mode": "local",
    "top_k": 1,
    "max_tokens": 12,
    "temperature": 0,
}


def read(stack) -> None:
    """Ingest the family, and wait until all facts of it are in the graph: a part of them makes another prompt."""
    stack.ingest("family", FAMILY)
    with stack.client() as client:

        def is_read() -> bool:
            seen = client.get("/v1/collections/family/graph")
            return seen.status_code == 200 and seen.json()["unread_chunks"] == 0

        until(is_read)


@pytest.fixture(scope="module")
def family(vllm_stack):
    read(vllm_stack)
    return vllm_stack


def test_facts_are_computed_once_and_attended_to_within_trees(family):
    first = family.query(**QUESTION).json()
    assert len(first["graph"]["paths"]) > 2
    assert (first["facts_attention"], first["facts_fallback"]) == ("dependency", None)
    again = family.query(**QUESTION).json()
    assert again["output_text"] == first["output_text"]
    assert again["facts_attention"] == "dependency"
    details = again["usage"]["prompt_tokens_details"]
    assert details["composed_tokens"] > 20
    assert again["reuse"] == "composed"
    assert family.metric('ragtree_facts_prompts_total{attention="dependency"}') >= 2


def test_an_exact_answer_has_every_path_in_full(family):
    in_trees = family.query(**QUESTION).json()
    reply = family.query(**QUESTION, reuse="exact").json()
    assert (reply["facts_attention"], reply["facts_fallback"]) == ("self", None)
    assert reply["graph"]["paths"] == in_trees["graph"]["paths"]
    assert reply["usage"]["prompt_tokens"] > in_trees["usage"]["prompt_tokens"]


def test_other_answers_have_no_facts(family):
    reply = family.query(**{**QUESTION, "mode": "naive"}).json()
    assert (reply["facts_attention"], reply["facts_fallback"]) == (None, None)


@pytest.mark.prove("retriever/graph/", "cachectl/runtime/", "generator/composing/dependency/")
def test_a_deletion_takes_the_facts_and_their_kv_along(family):
    def composed(reply) -> int:
        return reply["usage"]["prompt_tokens_details"]["composed_tokens"]

    family.query(**QUESTION)
    before = family.query(**QUESTION).json()
    assert "Bertha Grant" in str(before["graph"]["paths"])
    with family.client() as client:
        assert client.delete("/v1/collections/family/documents/bertha").status_code == 200
        without = family.query(**QUESTION).json()
        assert "Bertha Grant" not in str(without["graph"])
        # Facts that other documents state are still kept.
        assert 20 < composed(without) < composed(before)
        for document in ("albert", "conrad"):
            assert client.delete(f"/v1/collections/family/documents/{document}").status_code == 200
    read(family)
    told = family.query(**QUESTION).json()
    assert told["graph"]["paths"] == before["graph"]["paths"]
    # Of all facts, nothing is kept but the heading, which no document states.
    assert composed(told) < 5
    assert composed(family.query(**QUESTION).json()) > 20


def test_uploaded_triplets_are_facts_as_long_as_their_document_is_there(family):
    guild = {
        "text": "The ledger of the guild.",
        "triplets": [{"head": "Dora Stone", "relation": "owns", "tail": "Acme Company"}],
    }
    with family.client() as client:

        def around_dora() -> tuple[int, list[tuple[str, str, str]]]:
            seen = client.get("/v1/collections/family/graph", params={"label": "Dora Stone", "max_depth": 1})
            relations = seen.json().get("relations", [])
            return seen.status_code, [(each["head"], each["relation"], each["tail"]) for each in relations]

        assert client.put("/v1/collections/family/documents/guild", json=guild).status_code == 202
        until(lambda: ("Dora Stone", "owns", "Acme Company") in around_dora()[1])
        assert client.delete("/v1/collections/family/documents/guild").status_code == 200
        assert around_dora() == (404, [])
