"""A user's questions are read whole, or refused with the lines that are wrong."""

import gzip

import pytest

from examine.evaluation.question_file import read_questions
from protocol.errors import ConfigError


@pytest.fixture
def file(tmp_path):
    return tmp_path / "questions.jsonl"


def test_questions_keep_the_number_of_their_line(file):
    file.write_text(
        '{"question": "Who?", "answers": ["I"], "document_ids": ["a", "b"]}\n\n{"id": 7, "question": "Why?"}\n'
    )
    first, second = read_questions(file)
    assert (first.line, first.asked.answers, first.asked.document_ids) == (1, ("I",), ("a", "b"))
    assert (second.line, second.asked.question, second.asked.answers) == (3, "Why?", ())
    assert read_questions(file, limit=1) == [first]


def test_a_gzipped_file_is_read(file):
    file.write_bytes(gzip.compress(b'{"question": "Who?"}'))
    assert [question.line for question in read_questions(file)] == [1]


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        (b'{"question": "  "}', "the question is empty"),
        (b'{"question": 3}', "question"),
        (b'{"answers": ["x"]}', "question"),
        (b'{"question": "x", "answer": "y"}', "unknown field `answer`"),
        (b'{"question": "x", "answers": "y"}', "answers"),
        (b'{"question": "x", "answers": [""]}', "an answer is empty"),
        (b'{"question": "x", "document_ids": [""]}', "a document id is empty"),
        (b"[]", "Expected `object`"),
        (b"What?", "malformed"),
        (b'{"question": "\xff"}', "utf-8"),
    ],
)
def test_every_faulty_line_is_named_also_behind_the_limit(file, line, fault):
    file.write_bytes(b'{"question": "Who?"}\n' + line + b"\n\n" + line)
    with pytest.raises(ConfigError) as wrong:
        read_questions(file, limit=1)
    first, second = str(wrong.value).splitlines()[1:]
    assert fault in first
    assert first.startswith("  line 2: ")
    assert second.startswith("  line 4: ")


def test_many_faults_are_counted(file):
    file.write_text("\n".join(["x"] * 25))
    with pytest.raises(ConfigError, match=r"line 10: [\s\S]*and 15 more$"):
        read_questions(file)


@pytest.mark.parametrize("content", ["", "\n\n"])
def test_a_file_without_questions_is_refused(file, content):
    file.write_text(content)
    with pytest.raises(ConfigError, match="has no question"):
        read_questions(file)


def test_a_missing_file_is_refused(file):
    with pytest.raises(ConfigError, match="cannot be read"):
        read_questions(file)
