"""Needles: each document hides one code, and its question asks for that code alone."""

import re

import pytest
from workload_files import write_lines

from examine.evaluation.scores import holds_answer
from protocol.errors import ConfigError
from ragtree_lab.workloads.needles import NeedleSet

TEXT = "Much is told about it. " * 20
CODE = re.compile(r"The access code of the (\w+ \w+) project is (\d{5})")


@pytest.fixture
def data(tmp_path):
    documents = [{"doc_id": str(number), "text": TEXT, "title": f"Some_place_{number}"} for number in range(50)]
    write_lines(tmp_path / "tales" / "docs.jsonl.gz", [*documents, {"doc_id": "short", "text": "Little is told."}])
    return tmp_path


def test_each_document_hides_one_code_that_its_question_asks_for(data):
    needles = NeedleSet(data, "tales", 0)
    documents, questions = list(needles.documents()), list(needles.questions())
    assert len(documents) == len(questions) == 50
    for document, question in zip(documents, questions, strict=True):
        ((name, code),) = CODE.findall(document.text)
        assert (question.answers, question.gold_doc_ids) == ((code,), (document.doc_id,))
        assert name in question.question
        assert f"Some place {document.doc_id}" in question.question
        # Without the code, the document is as it was.
        assert document.text.replace(f"{CODE.search(document.text)[0]}. ", "") == TEXT
    texts = [document.text for document in documents]
    assert all(sum(holds_answer(text, question.answers) for text in texts) == 1 for question in questions)
    assert len({CODE.search(text).start() for text in texts}) > 5


def test_equal_seeds_hide_equal_codes(data):
    assert list(NeedleSet(data, "tales", 1).questions()) == list(NeedleSet(data, "tales", 1).questions())
    first, second = NeedleSet(data, "tales", 1), NeedleSet(data, "tales", 2)
    assert list(first.questions()) != list(second.questions())
    assert first.corpus != second.corpus


def test_a_missing_corpus_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="--data") as refused:
        NeedleSet(tmp_path, "tales", 0)
    assert refused.value.param == "data"
