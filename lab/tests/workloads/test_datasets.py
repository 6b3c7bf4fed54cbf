"""A part of a question set has whole articles, and the questions about them."""

import pytest
from workload_files import write_lines

from ragtree_lab.workloads.datasets import Dataset

ARTICLES, PARAGRAPHS = 200, 3


@pytest.fixture
def root(tmp_path):
    documents = [
        {"doc_id": f"{article}.{paragraph}", "title": f"article {article}", "text": "text"}
        for article in range(ARTICLES)
        for paragraph in range(PARAGRAPHS)
    ]
    questions = [
        {"qid": document["doc_id"], "question": "?", "gold_doc_ids": [document["doc_id"]]} for document in documents
    ]
    write_lines(tmp_path / "tales" / "docs.jsonl.gz", documents)
    write_lines(tmp_path / "tales" / "questions.jsonl.gz", [*questions, {"qid": "any", "question": "Of what?"}])
    return tmp_path


def test_a_part_has_whole_articles_and_their_questions(root):
    part = Dataset(root, "tales", one_in=4)
    ids = [document.doc_id for document in part.documents()]
    articles = {id_.partition(".")[0] for id_ in ids}
    assert len(ids) == PARAGRAPHS * len(articles)
    assert ARTICLES / 8 < len(articles) < ARTICLES / 2
    # A question that names no document stays.
    assert [question.qid for question in part.questions()] == [*ids, "any"]


def test_a_part_is_always_the_same_and_has_a_name_of_its_own(root):
    whole, part = Dataset(root, "tales"), Dataset(root, "tales", one_in=4)
    assert [each.doc_id for each in part.documents()] == [
        each.doc_id for each in Dataset(root, "tales", one_in=4).documents()
    ]
    assert (whole.name, whole.corpus) == ("tales", "tales")
    assert (part.name, part.corpus) == ("tales-one-in-4", "tales-one-in-4")
    assert len(list(whole.documents())) == ARTICLES * PARAGRAPHS
