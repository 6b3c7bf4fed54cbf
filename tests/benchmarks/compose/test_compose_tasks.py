"""The tasks of ``bench compose``: what they hide can be found, and only there."""

import pytest
from workload_files import write_lines

from benchmarks.compose.tasks import NEEDLES, first, needle_tasks, set_tasks, share_found
from protocol.errors import ConfigError

TEXTS = [f"Text {number} begins here. It goes on for a while. It ends with a word {number}." for number in range(20)]


@pytest.mark.parametrize("kind", NEEDLES)
def test_needles_are_hidden_in_whole_texts_and_repeat_with_the_seed(kind):
    tasks = first(needle_tasks(kind, TEXTS, 6, 0), 5)
    for task in tasks:
        prompt = "".join(task.chunks)
        assert len(task.chunks) == 6
        assert share_found(prompt, task.answers) == 1.0
        assert all(prompt.count(answer) == 1 for answer in task.answers)
        assert not any(answer in task.question + task.opening + task.neighbour for answer in task.answers)
        assert task.neighbour in TEXTS
        assert task.neighbour not in task.chunks
    assert tasks == first(needle_tasks(kind, TEXTS, 6, 0), 5)
    assert tasks != first(needle_tasks(kind, TEXTS, 6, 1), 5)


def test_the_code_of_two_hops_does_not_stand_beside_the_project_that_is_asked_about():
    for task in first(needle_tasks("two-hop", TEXTS, 6, 0), 5):
        (sentence,) = [part for part in " ".join(task.chunks).split(". ") if task.answers[0] in part]
        project = task.question.partition("which the ")[2].partition(" project")[0]
        assert project not in sentence


def test_a_set_gives_each_question_its_documents_among_others(tmp_path):
    documents = [{"doc_id": f"d{number}", "title": "", "text": f"text {number}"} for number in range(9)]
    questions = [{"qid": "q0", "question": "Which?", "answers": ["three"], "gold_doc_ids": ["d3"]}]
    write_lines(tmp_path / "small" / "docs.jsonl.gz", documents)
    write_lines(tmp_path / "small" / "questions.jsonl.gz", questions)
    (task,) = set_tasks(tmp_path, "small", 4, 0)
    assert len(task.chunks) == 4
    assert "text 3" in task.chunks
    assert task.neighbour not in task.chunks
    assert task.score("It is three", task.answers) > 0


def test_a_set_that_names_no_documents_is_refused(tmp_path):
    write_lines(tmp_path / "bare" / "docs.jsonl.gz", [{"doc_id": "d", "title": "", "text": "text"}])
    write_lines(tmp_path / "bare" / "questions.jsonl.gz", [{"qid": "q", "question": "Which?", "answers": ["one"]}])
    with pytest.raises(ConfigError, match="does not say which documents"):
        next(set_tasks(tmp_path, "bare", 4, 0))
