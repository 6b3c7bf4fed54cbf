"""Question sets as tasks of composed prompts."""

import pytest
from workload_files import write_lines

from protocol.errors import ConfigError
from ragtree_lab.compose.set_tasks import set_tasks


def test_a_set_gives_each_question_its_documents_among_others(tmp_path):
    documents = [{"doc_id": f"d{number}", "title": "", "text": f"text {number}"} for number in range(9)]
    questions = [{"qid": "q0", "question": "Which?", "answers": ["three"], "gold_doc_ids": ["d3"]}]
    write_lines(tmp_path / "small" / "docs.jsonl.gz", documents)
    write_lines(tmp_path / "small" / "questions.jsonl.gz", questions)
    (task,) = set_tasks(tmp_path, "small", 4, 0)
    assert len(task.chunks) == 4
    assert "text 3" in task.chunks
    assert task.neighbour not in task.chunks
    (asked,) = task.asked
    assert asked.score("It is three", asked.answers) > 0


def test_a_set_that_names_no_documents_is_refused(tmp_path):
    write_lines(tmp_path / "bare" / "docs.jsonl.gz", [{"doc_id": "d", "title": "", "text": "text"}])
    write_lines(tmp_path / "bare" / "questions.jsonl.gz", [{"qid": "q", "question": "Which?", "answers": ["one"]}])
    with pytest.raises(ConfigError, match="does not say which documents"):
        next(set_tasks(tmp_path, "bare", 4, 0))
