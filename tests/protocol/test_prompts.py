"""A prompt's facts as dependency trees."""

from protocol.dependency import Branch, DependencyTrees, DepPrompt
from protocol.prompts import Prompt, Segment, SegmentKind

SYSTEM = Segment(SegmentKind.SYSTEM, "system", (1, 2, 3))
DOCUMENT = Segment(SegmentKind.DOCUMENT, "document", (4, 5))
TOLD = Segment(SegmentKind.QUESTION, "told", (6, 7, 8, 7, 9))
QUESTION = Segment(SegmentKind.QUESTION, "question", (10, 11))
FACTS = DepPrompt((7, 8, 9), (Branch(1, -1), Branch(1, 0), Branch(1, 0)), (12,))


def test_facts_in_trees_take_the_place_of_those_in_full():
    prompt = Prompt((SYSTEM, DOCUMENT, TOLD, QUESTION), paths=(0, 1), facts=FACTS)
    assert prompt.trees is None
    found = prompt.in_trees
    assert found.token_ids == [1, 2, 3, 4, 5, 7, 8, 9, 12, 10, 11]
    assert found.trees == DependencyTrees(5, 3, FACTS.branches)
    assert (found.prefix, found.documents, found.paths) == (prompt.prefix, prompt.documents, (0, 1))
    assert (found.facts, found.in_trees) == (None, found)
    found.trees.check(found.token_count)


def test_a_prompt_without_facts_stays_as_it_is():
    prompt = Prompt((SYSTEM, DOCUMENT, QUESTION))
    assert prompt.in_trees is prompt
    assert prompt.trees is None
