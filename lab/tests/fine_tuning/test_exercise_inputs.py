"""What a model reads of an exercise: the same prompt that an engine computes."""

import pytest
import torch
from lessons_by_hand import BEHIND, TREES, brute_force_mask, brute_force_positions, exercise

from protocol.dependency import Branch, DependencyTrees, DepPrompt, TreePositions
from protocol.errors import InvalidRequest
from protocol.prompts import Prompt, Segment, SegmentKind
from ragtree_lab.fine_tuning.exercise import LaidOut, batches, exercises
from ragtree_lab.fine_tuning.inputs import attends, in_full, in_trees

FRONT_TOKENS = TREES.end + BEHIND


@pytest.mark.parametrize("positions", TreePositions)
def test_one_question_has_the_mask_and_the_positions_of_brute_force(positions):
    one = exercise(0, positions, questions=1)
    inputs = in_trees(one)
    (asked,) = one.asked
    prompt = (*one.in_trees, *asked.question, *asked.answer)[:-1]
    assert inputs.token_ids.tolist() == [list(prompt)]
    assert inputs.mask.shape == (1, 1, len(prompt), len(prompt))
    assert torch.equal(inputs.mask[0, 0] == 0, brute_force_mask(one.trees, len(prompt)))
    assert inputs.positions[0].tolist() == brute_force_positions(one.trees, len(prompt))


@pytest.mark.parametrize("way", [in_trees, in_full])
def test_the_answers_tokens_alone_are_predicted_each_by_the_token_in_front_of_it(way):
    one = exercise(0)
    inputs = way(one)
    assert tuple(inputs.wanted.tolist()) == one.asked[0].answer + one.asked[1].answer
    assert inputs.answers.tolist() == [0] * 2 + [1] * 3
    front = {token: place for place, token in enumerate(inputs.places.tolist())}
    assert len(front) == 5
    ids = inputs.token_ids[0]
    assert ids[inputs.places].tolist() == [
        one.asked[0].question[-1],
        *one.asked[0].answer[:-1],
        one.asked[1].question[-1],
        *one.asked[1].answer[:-1],
    ]


@pytest.mark.parametrize("way", [in_trees, in_full])
def test_each_of_several_questions_is_as_if_it_were_alone(way):
    both = exercise(0)
    inputs = way(both)
    total = len(both.in_trees if way is in_trees else both.in_full)
    first = total + len(both.asked[0].question) + len(both.asked[0].answer) - 1
    for number, rows in enumerate((range(total, first), range(first, inputs.token_ids.shape[1]))):
        alone = way(both._replace(asked=(both.asked[number],)))
        kept = torch.tensor([*range(total), *rows])
        assert torch.equal(inputs.token_ids[:, kept], alone.token_ids)
        assert torch.equal(inputs.positions[:, kept], alone.positions)
        assert torch.equal(inputs.mask[0, 0][kept][:, kept], alone.mask[0, 0])
        others = torch.tensor([place for place in range(inputs.token_ids.shape[1]) if place not in set(kept.tolist())])
        assert (inputs.mask[0, 0][torch.tensor([*rows])][:, others] < 0).all()


def test_a_chain_is_causal():
    chain = DependencyTrees(2, 2, tuple(Branch(3, place - 1) for place in range(4)))
    assert torch.equal(attends(15, chain, [4]), torch.ones(19, 19, dtype=torch.bool).tril())


def segment(kind: SegmentKind, *token_ids: int) -> Segment:
    return Segment(kind, "", token_ids)


def laid_out(question: int, *told: int) -> LaidOut:
    """A prompt with facts, as the layout makes it."""
    facts = DepPrompt((90, *told), (Branch(1, -1), Branch(1, -1), Branch(len(told) - 1, 1)), (91,))
    segments = (
        segment(SegmentKind.SYSTEM, 1, 2),
        segment(SegmentKind.QUESTION, 90, *told, *told, 91),
        segment(SegmentKind.QUESTION, question),
    )
    return LaidOut(Prompt(segments, facts=facts), (7, 8))


def test_questions_behind_the_same_facts_are_one_exercise():
    first, second = exercises([laid_out(5, 10, 11), laid_out(6, 12, 13), laid_out(4, 10, 11)], TreePositions.PREORDER)
    assert first.in_trees == (1, 2, 90, 10, 11, 91)
    assert first.in_full == (1, 2, 90, 10, 11, 10, 11, 91)
    assert (first.trees.start, first.trees.front, first.trees.positions) == (2, 2, TreePositions.PREORDER)
    assert [one.question for one in first.asked] == [(5,), (4,)]
    assert [one.question for one in second.asked] == [(6,)]


def test_a_prompt_without_facts_and_an_empty_answer_are_refused():
    whole = laid_out(5, 10, 11)
    without = Prompt((whole.prompt.segments[0], whole.prompt.segments[-1]))
    with pytest.raises(InvalidRequest, match="has no facts"):
        exercises([whole._replace(prompt=without)], TreePositions.DEPTH)
    with pytest.raises(InvalidRequest, match="no tokens"):
        exercises([whole._replace(answer=())], TreePositions.DEPTH)


def test_batches_have_at_least_so_many_questions_and_lose_none():
    made = [exercise(number, questions=1 + number % 3) for number in range(7)]
    assert [[len(one.asked) for one in batch] for batch in batches(made, 4)] == [[1, 2, 3], [1, 2, 3], [1]]
