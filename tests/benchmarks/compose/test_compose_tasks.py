"""The tasks of ``bench compose``: what they hide can be found, and only there."""

import pytest
from workload_files import write_lines

from benchmarks.compose.tasks import NEEDLES, first, needle_tasks, set_tasks, share_found
from protocol.errors import ConfigError

TEXTS = [f"Text {number} begins here. It goes on for a while. It ends with a word {number}." for number in range(20)]


@pytest.mark.parametrize("kind", NEEDLES)
def test_needles_are_hidden_in_whole_texts_and_repeat_with_the_seed(kind):
    tasks = first(needle_tasks(kind, TEXTS, 6, 0), 20)
    for task in tasks:
        prompt = "".join(task.chunks)
        assert len(task.chunks) == 6
        assert task.neighbour in TEXTS
        assert task.neighbour not in task.chunks
        for asked in task.asked:
            assert share_found(prompt, asked.answers) == 1.0
            assert all(prompt.count(answer) == 1 for answer in asked.answers)
            assert not any(answer in asked.question + asked.opening + task.neighbour for answer in asked.answers)
    assert tasks == first(needle_tasks(kind, TEXTS, 6, 0), 20)
    assert tasks != first(needle_tasks(kind, TEXTS, 6, 1), 20)


@pytest.mark.parametrize("kind", NEEDLES)
def test_several_questions_are_about_the_same_chunks_and_have_other_answers(kind):
    for task in first(needle_tasks(kind, TEXTS, 6, 0), 18):
        answers = [answer for asked in task.asked for answer in asked.answers]
        assert len(task.asked) > 1
        assert len(set(answers)) == len(answers)


def test_as_many_questions_as_wanted_are_taken():
    assert [len(task.asked) for task in first(needle_tasks("multi-key", TEXTS, 6, 0), 8)] == [6, 2]


def test_the_code_of_two_hops_does_not_stand_beside_the_project_that_is_asked_about():
    for task in first(needle_tasks("two-hop", TEXTS, 6, 0), 6):
        for asked in task.asked:
            (sentence,) = [part for part in " ".join(task.chunks).split(". ") if asked.answers[0] in part]
            project = asked.question.partition("is the ")[2].partition(" project")[0]
            assert project
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
    (asked,) = task.asked
    assert asked.score("It is three", asked.answers) > 0


def test_a_set_that_names_no_documents_is_refused(tmp_path):
    write_lines(tmp_path / "bare" / "docs.jsonl.gz", [{"doc_id": "d", "title": "", "text": "text"}])
    write_lines(tmp_path / "bare" / "questions.jsonl.gz", [{"qid": "q", "question": "Which?", "answers": ["one"]}])
    with pytest.raises(ConfigError, match="does not say which documents"):
        next(set_tasks(tmp_path, "bare", 4, 0))
