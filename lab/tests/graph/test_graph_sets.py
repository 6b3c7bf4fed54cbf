"""Which sets can be measured, and which passages are gold."""

import pytest
from family import DOCUMENTS, GOLD, QUESTIONS, documents, write_family, write_set

from protocol.errors import ConfigError
from ragtree_lab.graph.sets import NO_DOCUMENTS, NO_QUESTIONS, open_set, set_names


def gold_of(root, name: str) -> dict[str, list[str]]:
    found = open_set(root, name)
    assert found is not None
    return {question.qid: list(question.gold_doc_ids) for question in found.questions()}


def test_sets_without_documents_or_questions_are_left_out_with_the_reason(tmp_path):
    names = set_names(write_family(tmp_path))
    assert names.complete == ["given", "told", "unknown"]
    assert names.left_out == {"asked": NO_DOCUMENTS, "stored": NO_QUESTIONS}


def test_only_chosen_sets_are_looked_at(tmp_path):
    assert set_names(write_family(tmp_path), ["told", "asked", "told"]) == (["told"], {"asked": NO_DOCUMENTS})


def test_an_unknown_set_is_refused_with_the_known_ones(tmp_path):
    with pytest.raises(ConfigError, match=r"no set other at .*the sets are asked, given, stored, told, unknown"):
        set_names(write_family(tmp_path), ["given", "other"])


def test_passages_that_the_set_names_are_gold(tmp_path):
    write_family(tmp_path)
    assert open_set(tmp_path, "given").gold == "given"
    assert gold_of(tmp_path, "given") == GOLD


def test_a_question_whose_passage_is_no_document_is_not_asked(tmp_path):
    questions = [{**QUESTIONS[0], "gold_doc_ids": ["albert", "lost"]}, {**QUESTIONS[2], "gold_doc_ids": ["rivers"]}]
    write_set(tmp_path, "lossy", documents(), questions)
    assert gold_of(tmp_path, "lossy") == {"3": ["rivers"]}


def test_otherwise_contexts_that_contain_an_answer_are_gold(tmp_path):
    write_family(tmp_path)
    assert open_set(tmp_path, "told").gold == "answer"
    assert gold_of(tmp_path, "told") == {"1": ["bertha", "conrad"], "2": ["conrad"], "3": ["rivers"]}


@pytest.mark.parametrize(
    ("answers", "contexts", "gold"),
    [
        (["CONRAD miller!"], ["bertha", "rivers"], ["bertha"]),
        (["Conrad - Miller"], ["bertha"], ["bertha"]),
        (["nothing", "Conrad Miller"], ["bertha"], ["bertha"]),
        (["Mill"], ["bertha"], None),
        (["Conrad Miller"], ["rivers"], None),
        (["Conrad Miller"], ["lost"], None),
        (["Conrad Miller", "he"], ["bertha"], None),
        (["..."], ["bertha"], None),
        ([], ["bertha"], None),
    ],
)
def test_an_answer_is_found_as_whole_words_in_the_questions_own_contexts(tmp_path, answers, contexts, gold):
    question = {"qid": "1", "question": "Who?", "answers": answers, "ctx_doc_ids": contexts}
    write_set(tmp_path, "one", documents(), [question])
    found = open_set(tmp_path, "one")
    assert (None if found is None else [list(one.gold_doc_ids) for one in found.questions()]) == (
        None if gold is None else [gold]
    )


def test_a_set_without_any_known_passage_cannot_be_measured(tmp_path):
    assert open_set(write_family(tmp_path), "unknown") is None


def test_only_english_is_read_where_a_set_tells_languages(tmp_path):
    foreign = [{"doc_id": "fluss", "text": "Die Donau ist ein Fluss.", "lang": "de"}]
    questions = [
        {**QUESTIONS[2], "gold_doc_ids": ["rivers"], "lang": "en"},
        {"qid": "4", "question": "Welcher Fluss?", "gold_doc_ids": ["fluss"], "lang": "de"},
    ]
    write_set(tmp_path, "both", documents(lang="en") + foreign, questions)
    assert gold_of(tmp_path, "both") == {"3": ["rivers"]}
    assert {document.doc_id for document in open_set(tmp_path, "both").documents()} == DOCUMENTS.keys()


def test_questions_over_several_documents_or_steps_are_asked_alone(tmp_path):
    types = {"1": "Multi-hop Reasoning Question", "2": "Multi-document Comparison Question", "3": "Factual Question"}
    questions = [{**one, "gold_doc_ids": GOLD[one["qid"]], "type": types[one["qid"]]} for one in QUESTIONS]
    write_set(tmp_path, "typed", documents(), questions)
    assert gold_of(tmp_path, "typed").keys() == {"1", "2"}
    assert {one.qid for one in open_set(tmp_path, "typed", of_all_types=True).questions()} == {"1", "2", "3"}
    write_set(tmp_path, "typed", documents(), questions[2:])
    assert gold_of(tmp_path, "typed").keys() == {"3"}


@pytest.mark.parametrize(("count", "taken"), [(1, [0]), (3, [0, 3, 6]), (10, list(range(10))), (99, list(range(10)))])
def test_questions_are_taken_at_equal_distances(tmp_path, count, taken):
    questions = [{"qid": str(number), "question": "Which river?", "gold_doc_ids": ["rivers"]} for number in range(10)]
    write_set(tmp_path, "many", documents(), questions)
    assert [int(question.qid) for question in open_set(tmp_path, "many").evenly(count)] == taken


def test_questions_are_drawn_with_the_documents_that_they_need_and_as_many_others(tmp_path):
    questions = [
        {"qid": str(number), "question": "Which?", "gold_doc_ids": [f"g{number}"], "ctx_doc_ids": [f"c{number}"]}
        for number in range(10)
    ]
    names = [f"{kind}{number}" for kind in "gcx" for number in range(10)]
    write_set(tmp_path, "many", [{"doc_id": name, "text": name} for name in names], questions)
    whole = open_set(tmp_path, "many")
    few, more = whole.drawn(3, 0), whole.drawn(6, 0)
    asked = [question.qid for question in few.questions()]
    assert [question.qid for question in more.questions()][:3] == asked
    assert asked != [question.qid for question in whole.drawn(3, 1).questions()]
    kept = [document.doc_id for document in few.documents()]
    assert {f"{kind}{qid}" for kind in "gc" for qid in asked} <= set(kept)
    assert len(kept) == 12
    assert len(list(more.documents())) == 24
    assert len(list(whole.drawn(99, 0).documents())) == 30
    assert (few.name, few.corpus, few.gold) == ("many", "many", "given")
