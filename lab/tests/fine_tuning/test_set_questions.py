"""Questions of sets: which are taken, and with which facts."""

import pytest
from workload_files import write_lines

from protocol.errors import ConfigError
from protocol.graph import Path, Source
from ragtree_lab.fine_tuning.set_questions import SetQuestions, open_sets
from ragtree_lab.graph.facts import Facts


def path(document: str, *parts: str) -> Path:
    relations = parts[1::2]
    return Path(parts[::2], relations, (Source(document, 0, "hash"),) * len(relations), 0.5)


def question(number: int, **changes) -> dict:
    """Question ``number`` has document ``d<number>`` and the answer ``City<number>``."""
    own = {"qid": str(number), "question": f"Where is {number}?", "answers": [f"City{number}"]}
    return own | {"gold_doc_ids": [f"d{number}"]} | changes


def write_set(root, questions, name="cities", documents=20) -> None:
    write_lines(root / name / "docs.jsonl.gz", [{"doc_id": f"d{each}", "text": "Text."} for each in range(documents)])
    write_lines(root / name / "questions.jsonl.gz", questions)


class TwoPaths:
    """Finds two paths for each question, of which the second one states its answer, in its gold document."""

    def __init__(self) -> None:
        self.documents: set[str] = set()

    async def read(self, graph_set, asked) -> list[Facts]:
        self.documents = {document.doc_id for document in graph_set.documents()}
        return [
            Facts(
                one.question,
                one.answers,
                (
                    path("d0", "Ada", "-met->", f"Bob {one.qid}"),
                    path(f"d{one.qid}", "Ada", "-is in->", f"City{one.qid}"),
                ),
            )
            for one in asked
        ]


def everything(question, paths):
    return tuple(paths)


async def taken(root, questions: int, held_out: int, told=everything, reader=None):
    sets = open_sets(root, ["cities"])
    curricula = await SetQuestions(reader or TwoPaths(), told).curricula(sets, questions, held_out, 0)
    assert list(curricula) == ["cities"]
    return curricula["cities"]


def names(tasks) -> set[str]:
    return {asked.question for task in tasks for asked in task.asked}


async def test_questions_whose_facts_state_an_answer_are_taken_and_the_others_are_counted(tmp_path):
    elsewhere = question(4, gold_doc_ids=["d5"])
    write_set(tmp_path, [question(1), question(2, answers=["Rome"]), question(3), elsewhere, question(6)])
    own = await taken(tmp_path, 2, 1)
    assert names(own.training) | names(own.held_out) == {"Where is 1?", "Where is 3?", "Where is 6?"}
    assert (len(own.training), len(own.held_out), own.left_out) == (2, 1, 2)
    (asked,) = own.training[0].asked
    assert [one.text for one in own.training[0].paths] == [
        f"Ada -met-> Bob {asked.answers[0].removeprefix('City')}",
        f"Ada -is in-> {asked.answers[0]}",
    ]


async def test_paths_that_the_prompt_does_not_tell_do_not_count(tmp_path):
    write_set(tmp_path, [question(each) for each in range(4)])
    with pytest.raises(ConfigError, match="the facts of 0 of 4 questions of cities state an answer, and 1 are to be"):
        await taken(tmp_path, 2, 1, told=lambda question, paths: tuple(paths)[:1])


async def test_the_answer_that_the_facts_state_is_learned(tmp_path):
    write_set(tmp_path, [question(each, answers=["Rome", f"the CITY{each}.", "Paris"]) for each in range(3)])
    own = await taken(tmp_path, 2, 1)
    assert {asked.answers[0][:8] for task in own.training for asked in task.asked} == {"the CITY"}
    assert all(len(asked.answers) == 3 for task in own.training for asked in task.asked)


async def test_the_graph_has_the_documents_of_the_drawn_questions_and_as_many_others(tmp_path):
    write_set(tmp_path, [question(each) for each in range(9)], documents=40)
    reader = TwoPaths()
    own = await taken(tmp_path, 1, 1, reader=reader)
    assert (len(own.training), len(own.held_out)) == (1, 1)
    assert len(reader.documents) == 2 * 8
    more = await taken(tmp_path, 2, 1)
    assert more.held_out == own.held_out
    assert more.training[:1] == own.training


async def test_too_few_questions_to_hold_out_are_refused(tmp_path):
    write_set(tmp_path, [question(each) for each in range(4)])
    with pytest.raises(
        ConfigError, match=r"of 4 of 4 questions of cities .* 9 are to be held out: there is no question"
    ):
        await taken(tmp_path, 9, 9)


def test_sets_that_cannot_be_trained_on_are_refused(tmp_path):
    write_set(tmp_path, [question(1, answers=[])], "mute")
    write_set(tmp_path, [question(1, gold_doc_ids=[])], "lost")
    write_lines(tmp_path / "asked" / "questions.jsonl.gz", [question(1)])
    with pytest.raises(ConfigError, match=r"no set other at .*; the sets are asked, lost, mute"):
        open_sets(tmp_path, ["other"])
    with pytest.raises(ConfigError, match="the set mute cannot be trained on: no question has an answer"):
        open_sets(tmp_path, ["mute"])
    with pytest.raises(ConfigError, match="the set lost cannot be trained on: no question has known passages"):
        open_sets(tmp_path, ["lost"])
    with pytest.raises(ConfigError, match="the set asked cannot be trained on: no documents"):
        open_sets(tmp_path, ["asked"])


def test_questions_of_all_types_are_taken(tmp_path):
    write_set(tmp_path, [question(1, type="Multi-hop Reasoning Question"), question(2, type="Factual Question")])
    (found,) = open_sets(tmp_path, ["cities"])
    assert len(list(found.questions())) == 2
