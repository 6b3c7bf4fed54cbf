"""The tasks of composed prompts: what they hide can be found, and only there."""

import pytest

from examine.composing.tasks import NEEDLES, first, needle_tasks, share_found

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
