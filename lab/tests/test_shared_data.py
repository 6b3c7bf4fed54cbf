"""The benchmarks' question sets have the format that their reader expects."""

from pathlib import Path

import pytest

from ragtree_lab.workloads.datasets import Dataset

DATA = Path(__file__).parents[3] / "shared" / "data"

pytestmark = [
    pytest.mark.shared_data,
    pytest.mark.skipif(not (DATA / "squad").is_dir(), reason="the question sets are not part of the project"),
]


@pytest.fixture(scope="module")
def squad():
    return Dataset(DATA, "squad")


@pytest.fixture(scope="module")
def documents(squad):
    return list(squad.documents())


def test_documents_are_complete_and_unique(documents):
    assert len(documents) > 10_000
    assert len({document.doc_id for document in documents}) == len(documents)
    assert all(document.text.strip() and document.title for document in documents)


def test_every_question_names_existing_documents(squad, documents):
    known = {document.doc_id for document in documents}
    questions = list(squad.questions())
    assert len(questions) > 10_000
    assert len({question.qid for question in questions}) == len(questions)
    assert [question for question in questions if not question.question.strip()] == []
    unanswerable = [q.qid for q in questions if not q.gold_doc_ids or not known.issuperset(q.gold_doc_ids)]
    assert unanswerable == []
