"""The extractor that asks a language model, against a real HTTP server."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from chat_server import Body, ChatServer, Reply, chatting, passage_of, triplets

from protocol.errors import ConfigError, Unavailable
from protocol.graph import Triplet
from retriever.graph.extractors.base import Statement
from retriever.graph.extractors.llm import chat_endpoint
from retriever.graph.extractors.llm.extractor import LlmExtractor
from retriever.store.incoming import SourceText

TEXT = "Marie Curie was born in Warsaw. Warsaw lies on the Vistula."
SOURCE = SourceText(TEXT, "Marie Curie")
BORN, LIES = ("Marie Curie", "was born in", "Warsaw"), ("Warsaw", "lies on", "Vistula")
GOOD = triplets(BORN, LIES)
HALF = GOOD[:-30]
NONSENSE = "I am sorry, but I cannot do that."


@contextmanager
def extracting(reply: Callable[[Body], Reply] | str, **settings) -> Iterator[tuple[LlmExtractor, ChatServer]]:
    with chatting(reply) as server:
        extractor = LlmExtractor(server.settings(**settings))
        try:
            yield extractor, server
        finally:
            extractor.close()


def facts(statements: list[Statement] | None) -> list[tuple[str, str, str]] | None:
    return None if statements is None else [tuple(fact) for statement in statements for fact in statement.triplets]


def in_turn(*replies: Reply | str) -> Callable[[Body], Reply]:
    """These replies, the last one for all later requests."""
    left = [reply if isinstance(reply, Reply) else Reply(reply) for reply in replies]
    return lambda _: left.pop(0) if len(left) > 1 else left[0]


def test_triplets_of_an_answer_are_placed_in_the_sentences_that_state_them():
    with extracting(GOOD) as (extractor, server):
        (found,) = extractor.extract([SOURCE])
    assert found == [
        Statement(0, 31, ("Marie Curie", "Warsaw"), (Triplet(*BORN),)),
        Statement(32, len(TEXT), ("Warsaw", "Vistula"), (Triplet(*LIES),)),
    ]
    assert len(server.requests) == 1


def test_a_request_has_passage_title_and_bounds():
    with extracting(GOOD, model="m1", api_key="sk-1", max_tokens=99, extra_body={"min_p": 0.5}) as (extractor, server):
        extractor.extract([SOURCE, SourceText("No title.")])
    asked, untitled = sorted(server.requests, key=passage_of)
    assert asked["messages"][-1]["content"] == f"Title: Marie Curie\n\nPassage:\n{TEXT}"
    assert untitled["messages"][-1]["content"] == "Passage:\nNo title."
    assert (asked["model"], asked["temperature"], asked["max_tokens"], asked["min_p"]) == ("m1", 0, 99, 0.5)
    assert asked["response_format"]["json_schema"]["schema"]["required"] == ["triplets"]
    assert not asked.get("stream")
    assert {headers["authorization"] for headers in server.headers} == {"Bearer sk-1"}


def test_no_key_of_the_environment_is_sent(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    with extracting(GOOD) as (extractor, server):
        extractor.extract([SOURCE])
    assert "sk-secret" not in str(server.headers)


def test_chunks_have_their_own_statements_in_order():
    def reply(body: Body) -> Reply:
        name = passage_of(body).split()[0]
        # Later chunks are answered first.
        time.sleep(0.002 * (30 - int(name[1:])))
        return Reply(triplets((name, "is in", "Rome")))

    sources = [SourceText(f"N{number} is in Rome.") for number in range(30)]
    with extracting(reply, concurrency=5) as (extractor, server):
        found = extractor.extract([*sources, sources[3]])
        assert [facts(statements)[0][0] for statements in found] == [*(f"N{n}" for n in range(30)), "N3"]
        assert len(server.requests) == 30, "a text that comes twice is read once"
        assert 1 < server.most_running <= 5
        assert extractor.extract([]) == []


def test_threads_share_the_requests_at_once():
    def reply(_: Body) -> Reply:
        time.sleep(0.01)
        return Reply(GOOD)

    groups = [[SourceText(f"{group} {number}") for number in range(8)] for group in "abc"]
    with extracting(reply, concurrency=2) as (extractor, server), ThreadPoolExecutor(3) as pool:
        found = list(pool.map(extractor.extract, groups))
        assert [len(statements) for statements in found] == [8, 8, 8]
        assert server.most_running <= 2


@pytest.mark.parametrize(
    ("replies", "found", "asked"),
    [
        ([GOOD], [BORN, LIES], 1),
        (['{"triplets": []}'], [], 1),
        ([NONSENSE, GOOD], [BORN, LIES], 2),
        ([NONSENSE, NONSENSE], None, 2),
        (["", ""], None, 2),
        ([Reply(None), Reply(None)], None, 2),
        ([HALF, GOOD], [BORN, LIES], 2),
        ([HALF, HALF], [BORN], 2),
        ([HALF, NONSENSE], [BORN], 2),
        ([NONSENSE, HALF], [BORN], 2),
        ([GOOD[:20], GOOD[:20]], None, 2),
        ([HALF, '{"triplets": []}'], [], 2),
        ([Reply(HALF, "length")], [BORN], 1),
        ([Reply(GOOD[:20], "length")], [], 1),
        ([Reply(NONSENSE, "length"), Reply(NONSENSE, "length")], None, 2),
        ([Reply("<think> So the", "length"), Reply(GOOD)], [BORN, LIES], 2),
        (['{"triplets": [1, null]}', '{"triplets": "none"}'], None, 2),
        ([triplets(("Rome", "is", "rome"))], [], 1),
        ([Reply(body=b'{"choices": []}'), Reply(GOOD)], [BORN, LIES], 2),
        ([Reply(body=b'{"choices": []}')], None, 2),
    ],
)
def test_answers(replies, found, asked):
    with extracting(in_turn(*replies)) as (extractor, server):
        assert facts(extractor.extract([SOURCE])[0]) == found
    assert len(server.requests) == asked
    contents = [body["messages"][-1]["content"] for body in server.requests]
    assert len(set(contents)) == asked, "at temperature 0, the same question mostly gets the same answer"


def test_ten_thousand_triplets_are_64():
    many = triplets(*((f"Person {number}", "knows", "Marie Curie") for number in range(10_000)))
    for text in (many, many[:-20]):
        with extracting(text) as (extractor, _):
            assert len(facts(extractor.extract([SOURCE])[0])) == 64


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503])
def test_a_failure_that_passes_is_retried_by_the_client(status: int):
    with extracting(GOOD, max_retries=2) as (extractor, server):
        server.failures = [status, status]
        assert facts(extractor.extract([SOURCE])[0]) == [BORN, LIES]
        assert len(server.requests) == 3


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_failure_that_stays_is_unavailable(status: int):
    with extracting(lambda _: Reply(status=status), max_retries=1) as (extractor, server):
        with pytest.raises(Unavailable, match=str(status)):
            extractor.extract([SOURCE])
        assert len(server.requests) == 2
        server.reply = lambda _: Reply(GOOD)
        assert facts(extractor.extract([SOURCE])[0]) == [BORN, LIES]


def test_an_endpoint_that_is_away_is_unavailable():
    with chatting(GOOD) as server:
        settings = server.settings()
    extractor = LlmExtractor(settings)
    with pytest.raises(Unavailable):
        extractor.extract([SOURCE])
    extractor.close()


def test_an_endpoint_that_does_not_answer_in_time_is_unavailable():
    with extracting(GOOD, timeout_s=0.2) as (extractor, server):
        server.released.clear()
        began = time.monotonic()
        with pytest.raises(Unavailable):
            extractor.extract([SOURCE])
        assert time.monotonic() - began < 20


def test_an_endpoint_that_never_ends_its_answer_is_unavailable(monkeypatch):
    monkeypatch.setattr(chat_endpoint, "_LONGEST_PAUSE_S", 0.1)
    with extracting(GOOD, timeout_s=0.5, max_retries=1) as (extractor, server):
        server.drips = True
        began = time.monotonic()
        with pytest.raises(Unavailable):
            extractor.extract([SOURCE])
        assert 1 < time.monotonic() - began < 20
        assert len(server.requests) == 1, "each of its bytes came in time"


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (Reply(status=401), "401"),
        (Reply(status=403), "403"),
        (Reply(status=404), "404"),
        (Reply(status=400), "answers no request: .*400"),
        (Reply(status=422), "answers no request: .*422"),
        (Reply(body=b"<html>Hello!</html>"), "answers no request: .*no chat completion"),
        (Reply(body=b'{"choices": 7}'), "answers no request"),
        (Reply(body=b'{"choices": [{"text": "a"}]}'), "answers no request"),
        (Reply(body=GOOD.encode()), "answers no request"),
        (Reply(body=b"[" * 100_000), "answers no request"),
        (Reply(status=401, body=b'{"error": {"message": "' + b"x" * 100_000 + b'"}}'), "401"),
    ],
)
def test_an_endpoint_that_cannot_be_used_is_a_configuration_error(reply: Reply, reason: str):
    with extracting(lambda _: reply) as (extractor, server):
        for _ in range(2):
            with pytest.raises(ConfigError, match=reason) as raised:
                extractor.extract([SOURCE])
            assert len(str(raised.value)) < 1000
        server.reply = lambda _: Reply(GOOD)
        assert facts(extractor.extract([SOURCE])[0]) == [BORN, LIES]


@pytest.mark.parametrize("refusal", [Reply(status=400), Reply(status=413), Reply(body=b"filtered")])
def test_a_chunk_that_the_endpoint_refuses_alone_cannot_be_read(refusal: Reply):
    with extracting(lambda body: refusal if "secret" in str(body) else Reply(GOOD)) as (extractor, _):
        found = extractor.extract([SourceText("A secret."), SOURCE])
    assert [facts(statements) for statements in found] == [None, [BORN, LIES]]


def test_an_endpoint_without_schemas_is_asked_without_them():
    def reply(body: Body) -> Reply:
        return Reply(status=400) if "response_format" in body else Reply(GOOD)

    with extracting(reply, concurrency=1) as (extractor, server):
        found = extractor.extract([SOURCE, SourceText("Another text.")])
        assert None not in found
        assert ["response_format" in body for body in server.requests] == [True, False, False]


def test_schemas_can_be_turned_off():
    with extracting(GOOD, structured=False) as (extractor, server):
        extractor.extract([SOURCE])
    assert "response_format" not in server.requests[0]


def test_answers_of_a_group_that_fails_are_not_asked_for_again():
    def reply(body: Body) -> Reply:
        return Reply(status=503) if "N7 " in passage_of(body) else Reply(GOOD)

    sources = [SourceText(f"N{number} is in Rome.") for number in range(20)]
    with extracting(reply, concurrency=2) as (extractor, server):
        with pytest.raises(Unavailable):
            extractor.extract(sources)
        assert len(server.requests) == 20
        server.reply = lambda _: Reply(GOOD)
        assert len(extractor.extract(sources)) == 20
        assert len(server.requests) == 21
        # They are not kept any longer than that.
        extractor.extract(sources)
        assert len(server.requests) == 41


def test_closing_breaks_off_what_runs():
    with extracting(GOOD) as (extractor, server), ThreadPoolExecutor(1) as pool:
        server.released.clear()
        reading = pool.submit(extractor.extract, [SOURCE] * 3)
        assert server.asked.wait(20)
        began = time.monotonic()
        extractor.close()
        with pytest.raises(Unavailable):
            reading.result(20)
        assert time.monotonic() - began < 10
        with pytest.raises(Unavailable):
            extractor.extract([SOURCE])
        extractor.close()


def test_closing_in_a_pause_before_a_retry_does_not_wait_for_it():
    with (
        extracting(lambda _: Reply(status=503), max_retries=1000) as (extractor, server),
        ThreadPoolExecutor(1) as pool,
    ):
        reading = pool.submit(extractor.extract, [SOURCE])
        assert server.asked.wait(20)
        extractor.close()
        with pytest.raises(Unavailable):
            reading.result(20)


def test_an_extractor_that_has_read_nothing_closes():
    LlmExtractor(chatting_nowhere()).close()


def chatting_nowhere(**changes):
    with chatting(GOOD) as server:
        return server.settings(**changes)


@pytest.mark.parametrize("wrong", [{"api_key": "schlüssel"}, {"base_url": "http://[x"}, {"base_url": "http://x:y/v1"}])
def test_an_address_or_key_that_cannot_be_used_is_an_error_at_the_start(wrong):
    with pytest.raises(ConfigError):
        LlmExtractor(chatting_nowhere(**wrong))


def test_the_fingerprint_names_the_model():
    one, other = (LlmExtractor(chatting_nowhere(model=model)) for model in ("m1", "m2"))
    assert one.fingerprint != other.fingerprint
    assert LlmExtractor(chatting_nowhere(model="m1", max_tokens=7)).fingerprint == one.fingerprint
