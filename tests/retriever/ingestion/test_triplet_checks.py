"""Triplets of an upload: what is accepted, and how a refusal says where it is wrong."""

import msgspec
import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from protocol.documents import MOST_TRIPLETS, DocumentUpload
from protocol.errors import InvalidRequest
from protocol.graph import Triplet
from retriever.graph.names import LONGEST_NAME, name_key
from retriever.ingestion.document_checks import checked_document, parse_batch
from retriever.ingestion.upload_intake import body_hash
from retriever.store.incoming import IncomingDocument

BORN = {"head": "Marie Curie", "relation": "born in", "tail": "Warsaw"}


def checked(*triplets: tuple[str, str, str]) -> tuple[Triplet, ...]:
    return checked_document("d", "text", None, None, {}, triplets=[Triplet(*triplet) for triplet in triplets]).triplets


def line(**fields: object) -> bytes:
    return msgspec.json.encode({"id": "d", "text": "text", **fields})


def test_triplets_are_kept_in_tidy_spelling_and_once():
    assert checked(
        ("Marie  Curie", " born in", "'Warsaw'"),
        ("marie curie", "born in", "the WARSAW"),
        ("Marie Curie", "lived in", "Warsaw"),
    ) == (Triplet("Marie Curie", "born in", "Warsaw"), Triplet("Marie Curie", "lived in", "Warsaw"))


@pytest.mark.parametrize("part", Triplet._fields)
@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ("", "is empty"),
        ("  ", "is empty"),
        ("...", "no letter or digit"),
        ("x" * (LONGEST_NAME + 1), "longer than 120"),
        ("x" * 1_000_000, "longer than"),
        # One character that stands for eighteen.
        ("\ufdfa" * 20, "longer than 120"),
        ("a\x00b", "control character"),
        ("a\nb", "control character"),
        ("a\ud800", "lone surrogate"),
    ],
)
def test_a_part_that_names_nothing_is_refused_by_its_place(part, wrong, why):
    good = ("Marie Curie", "born in", "Warsaw")
    with pytest.raises(InvalidRequest, match=why) as refused:
        checked(good, ("Paris", "in", "France"), Triplet(*good)._replace(**{part: wrong}))
    assert refused.value.param == f"triplets[2].{part}"
    assert refused.value.param in str(refused.value)


def test_a_name_of_the_longest_length_is_accepted():
    longest = "x" * LONGEST_NAME
    assert checked((longest, longest, "y")) == (Triplet(longest, longest, "y"),)


def test_a_triplet_of_a_thing_with_itself_is_refused():
    with pytest.raises(InvalidRequest, match="same name") as refused:
        checked(("The Warsaw", "is", "WARSAW"))
    assert refused.value.param == "triplets[0].tail"


def test_a_document_has_a_bounded_number_of_triplets():
    many = [(f"head {number}", "r", "tail") for number in range(MOST_TRIPLETS)]
    assert len(checked(*many)) == MOST_TRIPLETS
    with pytest.raises(InvalidRequest, match="10,000") as refused:
        checked(*many, ("one", "r", "more"))
    assert refused.value.param == "triplets"


@given(st.lists(st.tuples(*[st.text(max_size=8)] * 3), max_size=4))
def test_what_is_accepted_is_whole_and_stays_as_it_is(triplets):
    try:
        kept = checked(*triplets)
    except InvalidRequest:
        return
    assert checked(*kept) == kept
    assert {(name_key(head), name_key(tail)) for head, _, tail in kept} == {
        (name_key(head), name_key(tail)) for head, _, tail in triplets
    }


def test_a_line_of_a_batch_may_have_triplets():
    batch = parse_batch(line(triplets=[BORN, BORN]) + b"\n" + line(triplets=[]) + b"\n" + line())
    assert [document.triplets for _, document in batch.documents] == [(Triplet(**BORN),), (), ()]


@pytest.mark.parametrize(
    "wrong",
    [
        None,
        "Marie",
        {},
        [None],
        [["Marie Curie", "born in", "Warsaw"]],
        [{**BORN, "tail": 3}],
        [{"head": "Marie Curie", "tail": "Warsaw"}],
        [BORN, {**BORN, "head": "?"}],
        [{**BORN, "tail": "marie curie"}],
    ],
)
def test_a_line_with_wrong_triplets_is_skipped_and_reported(wrong):
    batch = parse_batch(line(triplets=wrong) + b"\n" + line(triplets=[BORN]))
    assert [number for number, _ in batch.documents] == [2]
    (error,) = batch.errors
    assert (error.line, error.code) == (1, "invalid_request")
    assert "triplets" in error.message


def test_hashes_of_documents_without_triplets_are_those_of_earlier_versions():
    document = IncomingDocument("d", "text", "f", None, {"k": 1.0})
    assert document.content_hash == blake3(msgspec.msgpack.encode(("text", "f", None, [("k", 1.0)]))).hexdigest()
    others = [(Triplet("a", "r", "b"),), (Triplet("a", "r", "c"),), (Triplet("a", "r", "b"), Triplet("a", "r", "c"))]
    hashes = {msgspec.structs.replace(document, triplets=triplets).content_hash for triplets in others}
    assert len(hashes | {document.content_hash}) == 4


def test_idempotency_keys_know_uploads_of_earlier_versions():
    upload = DocumentUpload("d", b"text", "text/plain", "f")
    fields = {"document_id": "d", "content": b"text", "media_type": "text/plain", "filename": "f"}
    before = {**fields, "title": None, "attributes": {}}
    assert body_hash("c", upload) == blake3(msgspec.msgpack.encode(("c", before))).hexdigest()
    assert body_hash("c", msgspec.structs.replace(upload, triplets=(Triplet("a", "r", "b"),))) != body_hash("c", upload)


def test_jobs_that_earlier_versions_have_queued_are_read():
    queued = {"document_id": "d", "text": "text", "filename": "f", "title": None, "attributes": {}, "pages": []}
    document = msgspec.msgpack.decode(msgspec.msgpack.encode(queued), type=IncomingDocument)
    assert document.triplets == ()
    with_triplets = msgspec.structs.replace(document, triplets=(Triplet("a", "r", "b"),))
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(with_triplets), type=IncomingDocument) == with_triplets
