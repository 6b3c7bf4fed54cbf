"""Which questions are trained on, and which are held out."""

from itertools import islice

from benchmarks.compose.tasks import Asked
from benchmarks.fine_tuning.curriculum import made_up, of_file
from benchmarks.gate.fact_probes import FACTS, FactTask, fact_tasks


def asked(tasks: list[FactTask]) -> list[Asked]:
    return [one for task in tasks for one in task.asked]


def codes(tasks: list[FactTask]) -> set[str]:
    return {answer for one in asked(tasks) for answer in one.answers}


def test_made_up_questions_are_of_all_kinds_and_those_held_out_do_not_depend_on_their_number():
    few, many = made_up(20, 9, 0), made_up(200, 9, 0)
    assert [len(asked(tasks)) for tasks in (*few, *many)] == [20, 9, 200, 9]
    assert few.held_out == many.held_out
    assert few.training[:2] == many.training[:2]
    assert {len(task.paths[0].entities) + len(task.paths[1].entities) > 4 for task in many.training} == {True, False}
    assert not {task.paths for task in many.training} & {task.paths for task in many.held_out}


def test_made_up_questions_are_none_of_the_gates():
    for seed in (0, 1, -1):
        trained = codes([task for tasks in made_up(400, 8, seed) for task in tasks])
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


def test_both_sources_together():
    both = made_up(8, 1, 0).with_more(made_up(8, 2, 1))
    assert [len(asked(tasks)) for tasks in both] == [16, 3]
