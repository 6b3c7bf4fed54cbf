"""Which questions are trained on, and which are held out."""

from itertools import islice

from examine.composing.tasks import Probe
from examine.gate.fact_probes import FACTS, FactTask, fact_tasks
from ragtree_lab.fine_tuning.curriculum import Stated, made_up, of_file, of_set


def asked(tasks: list[FactTask]) -> list[Probe]:
    return [one for task in tasks for one in task.asked]


def codes(tasks: list[FactTask]) -> set[str]:
    return {answer for one in asked(tasks) for answer in one.answers}


def test_made_up_questions_are_of_all_kinds_and_those_held_out_do_not_depend_on_their_number():
    few, many = made_up(20, 9, 0), made_up(200, 9, 0)
    assert [len(asked(tasks)) for tasks in (*few[:2], *many[:2])] == [20, 9, 200, 9]
    assert few.held_out == many.held_out
    assert few.training[:2] == many.training[:2]
    assert {len(task.paths[0].entities) + len(task.paths[1].entities) > 4 for task in many.training} == {True, False}
    assert not {task.paths for task in many.training} & {task.paths for task in many.held_out}


def test_made_up_questions_are_none_of_the_gates():
    for seed in (0, 1, -1):
        trained = codes([task for tasks in made_up(400, 8, seed)[:2] for task in tasks])
        gates = codes([task for kind in FACTS for task in islice(fact_tasks(kind, abs(seed)), 50)])
        # Codes are drawn, so that a few are the same.
        assert len(trained & gates) < 0.05 * len(trained)


def test_a_files_questions_are_held_out_with_all_others_about_their_facts():
    tasks = [task for number, task in enumerate(islice(fact_tasks("one-hop facts", 0), 9)) if number]
    split = of_file(tasks, 9, 0)
    assert len(split.held_out) == 2
    assert len(split.training) == 6
    assert codes(split.training) | codes(split.held_out) == codes(tasks)
    assert of_file(tasks, 9, 0) == split
    assert of_file(tasks, 9, 1) != split
    assert of_file(tasks, 1000, 0).training == []


def stated(number: int, *documents: str, paths: int = -1) -> Stated:
    task = next(fact_tasks("one-hop facts", paths if paths >= 0 else number))
    question = task.asked[0]._replace(question=f"Question {number}?")
    return Stated(task._replace(asked=(question,)), frozenset(documents))


def test_a_sets_questions_are_trained_on_if_they_share_neither_documents_nor_facts_with_those_held_out():
    found = [
        stated(0, "a", "b"),
        stated(1, "c"),
        stated(2, "b", "d"),
        stated(3, "e", paths=1),
        stated(4, "e"),
        stated(5, "d"),
        stated(6, "f"),
    ]
    split = of_set(found, 2, 2, 9)
    assert [one.question for one in asked(split.held_out)] == ["Question 0?", "Question 1?"]
    assert [one.question for one in asked(split.training)] == ["Question 4?", "Question 5?"]
    assert split.left_out == 9
    assert of_set(found, 2, 9, 0).training == []
