"""Traffic follows from the settings alone. Invalid settings are refused with a reason."""

from argparse import Namespace

import msgspec
import pytest

from loadtest.errors import BadOption
from loadtest.settings import LoadSettings
from loadtest.traffic.synthetic_corpus import SyntheticCorpus
from loadtest.traffic.traffic import Traffic


def traffic(**settings):
    return Traffic(LoadSettings(**{"documents": 40, "schedule": "10:20", **settings}))


def test_equal_settings_give_equal_traffic():
    asked = list(traffic(seed=7, disconnect_share=0.5).arrivals())
    assert asked == list(traffic(seed=7, disconnect_share=0.5).arrivals())
    assert asked != list(traffic(seed=8, disconnect_share=0.5).arrivals())
    assert [arrival.number for arrival in asked] == list(range(len(asked)))


def test_disconnects_change_nothing_else():
    stay, leave = traffic(), traffic(disconnect_share=0.5, max_tokens=16)
    assert [arrival[:3] for arrival in stay.arrivals()] == [arrival[:3] for arrival in leave.arrivals()]
    assert {arrival.leaves_after for arrival in stay.arrivals()} == {None}
    leaving = [arrival.leaves_after for arrival in leave.arrivals() if arrival.leaves_after is not None]
    assert 0.35 < len(leaving) / len(list(leave.arrivals())) < 0.65
    assert set(leaving) <= set(range(16))
    assert len(set(leaving)) > 8


def test_synthetic_corpus_answers_its_questions():
    corpus = SyntheticCorpus(documents=403, words=30, seed=1)
    lines = [msgspec.json.decode(line) for batch in corpus.batches() for line in batch.splitlines()]
    assert [line["id"] for line in lines] == [str(number) for number in range(403)]
    assert len(corpus.questions) == 101
    assert all(line["title"] in corpus.questions[int(line["id"]) // 4] for line in lines)
    assert all(30 <= len(line["text"].split()) < 60 for line in lines)
    assert [line["text"] for line in lines] == [document.text for document in SyntheticCorpus(403, 30, 1).documents]


def test_question_file_is_used(tmp_path):
    file = tmp_path / "questions.jsonl"
    file.write_text('{"query": "one?", "other": 1}\n\n{"query": "two?"}\n')
    own = traffic(questions=str(file))
    assert own.corpus is None
    assert own.collection is None
    assert {arrival.query for arrival in own.arrivals()} == {"one?", "two?"}


def test_trace_is_replayed_in_time(tmp_path):
    file = tmp_path / "trace.jsonl"
    file.write_text('{"at": 2.5, "query": "later"}\n{"at": 0, "query": "now"}\n')
    replayed = traffic(trace=str(file), collection="mine")
    assert [(arrival.at, arrival.query) for arrival in replayed.arrivals()] == [(0.0, "now"), (2.5, "later")]
    assert replayed.seconds == 2.5
    assert replayed.collection == "mine"


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "no lines"),
        ("{}\n", "line 1"),
        ('{"at": 0, "query": "a"}\n{"at": "soon", "query": "b"}\n', "line 2"),
        ("{\n", "line 1"),
        ('{"at": -1, "query": "a"}\n', "negative"),
    ],
)
def test_invalid_trace_is_refused(tmp_path, content, says):
    file = tmp_path / "trace.jsonl"
    file.write_text(content)
    with pytest.raises(BadOption, match=says):
        traffic(trace=str(file))


def test_missing_file_is_named(tmp_path):
    with pytest.raises(BadOption, match=r"gone\.jsonl: No such file"):
        traffic(questions=str(tmp_path / "gone.jsonl"))


def options(**given):
    return Namespace(**{**msgspec.structs.asdict(LoadSettings()), **given})


def test_settings_accept_the_web_form():
    settings = LoadSettings.of(options(seed="3", zipf="0.5", schedule="1:2"))
    assert (settings.seed, settings.zipf, settings.schedule) == (3, 0.5, "1:2")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"disconnect_share": 1.5}, "disconnect_share"),
        ({"max_open": 0}, "max_open"),
        ({"questions": "a", "trace": "b"}, "cannot be combined"),
    ],
)
def test_invalid_settings_are_refused(given, says):
    with pytest.raises(BadOption, match=says):
        LoadSettings.of(options(**given))
