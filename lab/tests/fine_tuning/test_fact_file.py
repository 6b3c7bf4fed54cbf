"""A user's file of questions with their facts."""

import gzip
import json

import pytest

from protocol.errors import ConfigError
from ragtree_lab.fine_tuning.fact_file import read_fact_tasks

ADA = {"entities": ["Ada", "London", "England"], "relations": ["-born in->", "<-has-"], "score": 0.5, "sources": [1]}
BOB = {"entities": ["Bob", "Rome"], "relations": ["-lives in->"]}


def line(**changes) -> dict:
    return {"question": "Where was Ada born?", "answers": ["London", "UK"], "paths": [ADA]} | changes


def write(folder, *lines):
    file = folder / "questions.jsonl"
    file.write_text("".join(f"{one if isinstance(one, str) else json.dumps(one)}\n" for one in lines))
    return file


def test_questions_with_equal_paths_are_one_task(tmp_path):
    other = line(question="Which country has London?", answers=["England"], opening="It is")
    file = write(tmp_path, line(), "", line(question="Where is Bob?", paths=[BOB]), other)
    first, second = read_fact_tasks(file)
    assert [asked.question for asked in first.asked] == ["Where was Ada born?", "Which country has London?"]
    assert first.asked[0].answers == ("London", "UK")
    assert [asked.opening for asked in first.asked] == ["", "It is"]
    assert [path.text for path in first.paths] == ["Ada -born in-> London <-has- England"]
    assert [path.text for path in second.paths] == ["Bob -lives in-> Rome"]


def test_a_gzipped_file_is_read(tmp_path):
    file = tmp_path / "questions.jsonl.gz"
    file.write_bytes(gzip.compress(json.dumps(line()).encode()))
    assert len(read_fact_tasks(file)) == 1


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (line(question=" "), "the question is empty"),
        (line(answers=[]), "no answer"),
        (line(answers=["London", ""]), "an empty one"),
        (line(paths=[]), "no paths"),
        (line(paths=[{"entities": ["Ada"], "relations": []}]), "at least one relation"),
        (line(paths=[{"entities": ["Ada", "London"], "relations": ["-a->", "-b->"]}]), "one entity more"),
        (line(paths=[{"entities": ["Ada", " "], "relations": ["-a->"]}]), "is empty"),
        (line(path=[]), "unknown field `path`"),
        ({"question": "Where?"}, "answers"),
        ("{", "truncated"),
    ],
)
def test_a_faulty_line_is_named(tmp_path, bad, why):
    with pytest.raises(ConfigError, match=rf"line 2: .*{why}"):
        read_fact_tasks(write(tmp_path, line(), bad))


def test_a_file_without_questions_and_a_missing_one_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="has no question"):
        read_fact_tasks(write(tmp_path, ""))
    with pytest.raises(ConfigError, match="cannot be read"):
        read_fact_tasks(tmp_path / "missing")
