"""Questions over facts as exercises: the prompts are those of serving."""

from itertools import islice

import pytest
from model_folders import make_model_folder

from examine.gate.fact_probes import FACTS, fact_tasks
from generator.prompts.layout import SegmentLayout
from generator.prompts.tokenizer import ModelTokenizer
from protocol.dependency import TreePositions
from protocol.errors import ConfigError
from protocol.prompts import ChatMessage
from ragtree_lab.fine_tuning.lessons import Lessons


@pytest.fixture
def tokenizer(tmp_path) -> ModelTokenizer:
    return ModelTokenizer(make_model_folder(tmp_path / "model"))


def layout(tokenizer: ModelTokenizer, room: int = 40_000) -> SegmentLayout:
    return SegmentLayout(tokenizer, "Answer.", room)


def text(tokenizer: ModelTokenizer, token_ids) -> str:
    completed = tokenizer.decode_stream()
    return "".join(completed(token) for token in token_ids)


@pytest.mark.parametrize("kind", FACTS)
@pytest.mark.parametrize("positions", TreePositions)
def test_exercises_are_prompts_as_they_are_served(tokenizer, kind, positions):
    (task,) = islice(fact_tasks(kind, 0), 1)
    (made,) = Lessons(tokenizer, layout(tokenizer), positions).exercises([task])
    assert len(made.asked) == len(task.asked)
    for asked, one in zip(task.asked, made.asked, strict=True):
        served = layout(tokenizer).lay_out([ChatMessage("user", asked.question)], [], 100, paths=task.paths)
        opening = tokenizer.encode(asked.opening)
        assert [*made.in_full, *one.question] == [*served.token_ids, *opening]
        assert [*made.in_trees, *one.question] == [*served.in_trees.token_ids, *opening]
        assert text(tokenizer, one.answer) == f" {asked.answers[0]}"
        assert one.answer[-1] == tokenizer.encode_template("<|end|>")[0]
        trees = served.in_trees.trees
        assert (made.trees.start, made.trees.front, made.trees.branches) == (trees.start, trees.front, trees.branches)
        assert made.trees.positions is positions
        heading = made.in_trees[trees.start : trees.start + trees.branches[0].tokens]
        assert (trees.front, text(tokenizer, heading)) == (trees.start, "Facts:")


def test_an_answer_without_an_opening_has_no_space_in_front(tokenizer):
    (task,) = islice(fact_tasks("one-hop facts", 0), 1)
    task = task._replace(asked=(task.asked[0]._replace(opening=""), task.asked[1]._replace(opening="It is\n")))
    (made,) = Lessons(tokenizer, layout(tokenizer), TreePositions.DEPTH).exercises([task])
    assert [text(tokenizer, one.answer) for one in made.asked] == [asked.answers[0] for asked in task.asked]


def test_facts_that_do_not_fit_are_left_out_as_in_serving_and_none_at_all_is_refused(tokenizer):
    (task,) = islice(fact_tasks("one-hop facts", 0), 1)
    (whole,) = Lessons(tokenizer, layout(tokenizer), TreePositions.DEPTH).exercises([task])
    cut = Lessons(tokenizer, layout(tokenizer, 2_000), TreePositions.DEPTH).exercises([task])
    assert all(len(made.in_trees) < len(whole.in_trees) for made in cut)
    with pytest.raises(ConfigError, match="no room for the facts of 'What is the access code"):
        Lessons(tokenizer, layout(tokenizer, 300), TreePositions.DEPTH).exercises([task])
