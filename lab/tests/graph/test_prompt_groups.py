"""Which of the attention benchmark's prompts are for what."""

import pytest
from facts_by_hand import facts, words

from generator.prompts.dependency_trees import dependency_trees, parts_of
from protocol.errors import ConfigError
from protocol.kv import Paging
from protocol.prompts import Prompt, Segment, SegmentKind
from ragtree_lab.graph.attention.prompt_groups import MOST_TIMED, PromptGroup, PromptGroups, least_questions
from ragtree_lab.graph.attention.slo_throughput import Ladder, SloThroughput
from ragtree_lab.graph.facts import Facts


class WordLayout:
    """Lays out as many paths as there is room for. Has no heading."""

    def lay_out(self, messages, documents, max_tokens, *, paths, budget):
        question = messages[0].content
        told = Facts(question, [], paths).within(budget.relation, words).paths
        in_full = (token for path in told for part in parts_of(path) for token in words(part))
        segments = (
            Segment(SegmentKind.SYSTEM, "", (1,)),
            Segment(SegmentKind.QUESTION, "", tuple(in_full)),
            Segment(SegmentKind.QUESTION, "", words(question)),
        )
        return Prompt(segments, facts=dependency_trees(told, words))


SLO = SloThroughput(Ladder(), lambda *_: None)


def questions(count: int, paths: int = 2):
    """Each has ``paths`` paths of 3 tokens."""
    texts = ["a to b", "a to c", "a to d"][:paths]
    return [facts(*texts, question=f"q{number}") for number in range(count)]


def groups(sets, sizes, arriving=SLO.taken) -> list[PromptGroup]:
    return PromptGroups(WordLayout(), Paging(16), arriving).over(sets, sizes)


def test_each_prompt_is_for_one_thing():
    (group,) = groups({"set": questions(300)}, [6])
    parts = (group.warming, group.arriving, group.timed, group.at_once)
    assert [len(part) for part in parts] == [128, 108, 32, 32]
    assert len({prompt.facts.question for part in parts for prompt in part}) == 300


def test_half_of_the_prompts_that_would_warm_up_still_do():
    least = least_questions(SLO.least_prompts)
    assert least == 2 * 88 + 2 * MOST_TIMED
    (group,) = groups({"set": questions(least)}, [6])
    assert (len(group.warming), len(group.arriving)) == (88, 88)
    (group,) = groups({"set": questions(least - 1)}, [6])
    assert (len(group.warming), len(group.arriving)) == (least - 1 - 2 * MOST_TIMED, 0)


def test_prompts_arrive_in_the_last_group_with_enough_of_the_first_set_that_has_one():
    sets = {"few": questions(20, 3), "many": questions(250, 2) + questions(20, 3), "more": questions(300, 3)}
    found = groups(sets, [3, 6, 9])
    assert [(group.set, group.tokens) for group in found] == [(name, tokens) for name in sets for tokens in (3, 6, 9)]
    assert [str(group) for group in found if group.arriving] == ["many, 6 tokens"]


def test_no_prompt_arrives_if_none_shall():
    assert not any(group.arriving for group in groups({"set": questions(300)}, [6], arriving=lambda spare: 0))


def test_sets_with_too_few_facts_are_refused():
    with pytest.raises(ConfigError, match="so many tokens of facts"):
        groups({"set": questions(2), "short": questions(300, 1)}, [6])
