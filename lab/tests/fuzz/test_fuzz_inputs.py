"""The inputs of a campaign: equal seeds give equal ones, and each generator makes what it says."""

import json
from pathlib import Path
from random import Random

import pytest

from loadtest.errors import BadOption
from protocol.errors import RagtreeError
from ragtree_lab.fuzz.drawing import Drawing, examples
from ragtree_lab.fuzz.files.packages import repackaged
from ragtree_lab.fuzz.files.samples import MAKERS, sample
from ragtree_lab.fuzz.files.uploads import damaged, real_files, upload
from ragtree_lab.fuzz.requests import Caller, Input, Piece, Request, call, json_call
from ragtree_lab.fuzz.sources import LANES, lanes_of, strategies
from retriever.loaders.registry import LOADERS, LoaderRegistry

OPENAPI = {
    "openapi": "3.1.0",
    "info": {"title": "x", "version": "1"},
    "paths": {
        "/query": {
            "post": {
                "requestBody": {
                    "content": {
                        "application/json": {
                            "schema": {
                                "type": "object",
                                "properties": {"query": {"type": "string"}, "max_tokens": {"type": "integer"}},
                                "required": ["query"],
                            }
                        }
                    }
                },
                "responses": {"200": {"description": "x"}},
            }
        }
    },
}
ARGUMENTS = (OPENAPI, "model", "judged", (Path(__file__).parents[3] / "docs",))


@pytest.fixture(scope="module")
def sources():
    return strategies(*ARGUMENTS)


def bodies(inputs):
    for given in inputs:
        for request in given.requests:
            content = b"".join(piece.content for piece in request.pieces)
            yield content.partition(b"\r\n\r\n")[2]


def test_lanes_and_sources_are_the_same(sources):
    assert {source for lane in LANES for source in lane.sources} == set(sources)


@pytest.mark.parametrize("source", sorted({source for lane in LANES for source in lane.sources}))
def test_equal_seeds_give_equal_inputs(sources, source):
    drawn = examples(sources[source], "7", 12)
    assert drawn == examples(sources[source], "7", 12)
    assert drawn != examples(sources[source], "8", 12)
    assert all(isinstance(each, Input) and each.requests for each in drawn)


async def test_another_process_draws_the_same(sources):
    drawing = Drawing(7, ["pages"], strategies, *ARGUMENTS)
    try:
        await drawing.ready()
        drawn = [await anext(inputs) for inputs in [drawing.inputs("pages")] for _ in range(5)]
    finally:
        drawing.close()
    assert [each.input for each in drawn] == examples(sources["pages"], "7/pages/0", 100)[:5]
    assert [each.number for each in drawn] == [0, 1, 2, 3, 4]


def test_requests_hold_no_key_until_they_are_sent():
    request = Request(pieces=(Piece(json_call("/query", {"query": Caller.ADMIN.placeholder})),))
    (sent,) = request.sent({Caller.STRANGER: "secret", Caller.ADMIN: "other"})
    head, _, body = sent.content.partition(b"\r\n\r\n")
    assert b"Authorization: Bearer secret" in head
    assert json.loads(body) == {"query": Caller.ADMIN.placeholder}
    assert b"Authorization" not in call("GET", "/", caller=Caller.NOBODY)


def test_sampling_tries_every_parameter_and_small_answers(sources):
    asked = [json.loads(body) for body in bodies(examples(sources["sampling"], "1", 150))]
    names = set().union(*asked)
    assert {"temperature", "seed", "n", "logit_bias", "stop", "reuse"} <= names
    assert any("seed" in body and body.get("temperature") for body in asked)


def test_schemas_are_deep_wide_and_recursive(sources):
    sent = [body.decode() for body in bodies(examples(sources["schemas"], "1", 200))]
    assert any("(" * 1000 in body for body in sent)
    assert any('"p2999"' in body for body in sent)
    assert any('"$ref": "#"' in body for body in sent)
    assert max(map(len, sent)) < 400_000


def test_conversations_have_thousands_of_messages(sources):
    sent = [json.loads(body) for body in bodies(examples(sources["conversations"], "1", 60))]
    assert max(len(body.get("messages", body.get("input"))) for body in sent) > 7000


@pytest.mark.parametrize("suffix", sorted(MAKERS))
def test_samples_are_documents_that_a_loader_reads(suffix):
    registry = LoaderRegistry()
    texts = set()
    for number in range(20):
        file = sample(suffix, Random(number))
        assert file.media_type in LOADERS
        try:
            texts.add(registry.load(file.content, file.media_type).text)
        except RagtreeError:
            # Nothing says the encoding of a text, and some tables have no rows.
            assert suffix in {".txt", ".json"}
    assert len(texts) >= 8


def test_samples_of_all_loaders_are_made():
    assert {media_type for media_type, _ in MAKERS.values()} == set(LOADERS)


@pytest.mark.parametrize("suffix", sorted(MAKERS))
def test_damage_changes_files_repeatably(suffix):
    content = sample(suffix, Random(1)).content
    changed = [damaged(content, suffix, Random(number)) for number in range(10)]
    assert changed == [damaged(content, suffix, Random(number)) for number in range(10)]
    assert sum(each != content for each in changed) >= 8


def test_packages_that_are_none_are_damaged_all_the_same():
    assert repackaged(b"PK\x03\x04 no package", Random(1))


def test_real_files_are_uploaded_too():
    real = real_files([Path(__file__).parents[3] / "docs"])
    assert {file.suffix for file in real} <= set(MAKERS)
    sent = [upload(Random(number), real) for number in range(60)]
    assert all(given.files == 1 for given in sent)
    assert any(real[0].content in body or b"RAGTree" in body for body in bodies(sent))


def test_a_campaign_may_try_some_lanes_or_sources_only():
    assert lanes_of([]) == list(LANES)
    questions, wire = lanes_of(["wire", "schemas", "leaving"])
    assert (questions.name, questions.sources) == ("questions", ("schemas", "leaving"))
    assert wire == LANES[-1]
    with pytest.raises(BadOption, match=r"no lane or source is named x; there are .*wire"):
        lanes_of(["x"])
