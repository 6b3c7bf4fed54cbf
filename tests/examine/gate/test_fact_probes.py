"""Made-up facts: every question has its answer in them once, and no other question's paths have it."""

from itertools import islice

import pytest

from examine.gate.fact_probes import FACTS, fact_tasks


@pytest.mark.parametrize("kind", FACTS)
def test_each_answer_stands_at_the_end_of_one_path_below_what_is_asked_for(kind):
    for task in islice(fact_tasks(kind, 0), 20):
        assert len(task.asked) == len({path.entities[0] for path in task.paths})
        for asked in task.asked:
            (path,) = [path for path in task.paths if path.entities[-1] == asked.answers[0]]
            assert path.entities[0] in asked.question
            assert path.entities[-2] in asked.opening
            assert asked.score(f" {asked.answers[0]}.", asked.answers) == 1
            assert asked.answers[0] not in asked.opening + asked.question


@pytest.mark.parametrize("kind", FACTS)
def test_tasks_are_the_same_for_the_same_seed(kind):
    first, second = (list(islice(fact_tasks(kind, 3), 4)) for _ in range(2))
    assert [task.paths for task in first] == [task.paths for task in second]
    assert [task.paths for task in first] != [task.paths for task in islice(fact_tasks(kind, 4), 4)]


def test_two_hops_share_their_first_step():
    task = next(fact_tasks("two-hop facts", 0))
    firsts = [path.entities[:2] for path in task.paths if len(path.entities) == 3]
    assert len(firsts) == 2 * len(set(firsts))
