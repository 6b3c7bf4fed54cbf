"""Answers of language models: good ones, broken ones, and what is no answer."""

import json
import time

import pytest
from chat_server import triplets
from hypothesis import given
from hypothesis import strategies as st

from protocol.graph import Triplet
from retriever.graph.extractors.llm.answer import Answer, read_answer

FACTS = (("Marie Curie", "was born in", "Warsaw"), ("Warsaw", "lies on", "Vistula"))
READ = tuple(Triplet(*fact) for fact in FACTS)
GOOD = triplets(*FACTS)


@pytest.mark.parametrize(
    "text",
    [
        GOOD,
        json.dumps(json.loads(GOOD), indent=2),
        f"```json\n{GOOD}\n```",
        f"Here are the facts [1]:\n\n{GOOD}\n\nI hope that this helps.",
        f'<think>\nPerhaps {{"triplets": [{{"head": "x", "relation": "y", "tail": "z"}}]}}?\n</think>\n{GOOD}',
        json.dumps(json.loads(GOOD)["triplets"]),
        f"```\n{json.dumps(json.loads(GOOD)['triplets'])}\n```",
        GOOD.replace("}]}", "},]}"),
        json.dumps({"passage": 'states "triplets"', **json.loads(GOOD), "count": 2}),
    ],
)
def test_good_answers_are_whole(text: str):
    assert read_answer(text) == Answer(READ, begins=True, whole=True)


@pytest.mark.parametrize("text", ['{"triplets": []}', '{"triplets":[ \n ]}', "[]"])
def test_no_fact_is_an_answer(text: str):
    assert read_answer(text) == Answer((), begins=True, whole=True)


@pytest.mark.parametrize(
    "text",
    [
        "",
        " \n",
        "The passage states no facts.",
        "{}",
        '{"triplets": null}',
        '{"triplets": {"head": "a", "relation": "b", "tail": "c"}}',
        '{"triplets": "none"}',
        '"triplets"',
        "<think> I wonder whether",
        f"<think> {GOOD}",
        "\0\ud800",
        "{" * 100_000,
    ],
)
def test_nonsense_is_no_answer(text: str):
    assert read_answer(text) == Answer()


@pytest.mark.parametrize(
    "item",
    [
        "null",
        "7",
        '"Marie Curie"',
        '["Marie Curie", "was born in", "Warsaw"]',
        "{}",
        '{"head": "Marie Curie", "relation": "was born in"}',
        '{"head": "Marie Curie", "relation": "was born in", "tail": null}',
        '{"head": ["Marie Curie"], "relation": "was born in", "tail": "Warsaw"}',
        '{"head": 1, "relation": 2, "tail": 3}',
    ],
)
def test_what_is_no_triplet_is_left_out(item: str):
    beside = GOOD.replace("[", f"[{item}, ")
    assert read_answer(beside) == Answer(READ, begins=True, whole=True)
    assert read_answer(f'{{"triplets": [{item}]}}') == Answer((), begins=True, whole=False)


@pytest.mark.parametrize(
    ("rest", "count"),
    [
        ("", 2),
        (",", 2),
        (', {"head": "Vistula", "rel', 2),
        (', {"head": "Vistula", "relation": "flows to", "tail": "Baltic Sea"} {"head"', 3),
        (", nonsense]}", 2),
        (", " + "[" * 100_000, 2),
        (", " + '{"head":' * 100_000, 2),
        (", " + "9" * 10_000 + "]}", 2),
        ("}", 2),
    ],
)
def test_triplets_before_a_break_are_kept(rest: str, count: int):
    answer = read_answer(GOOD.removesuffix("]}") + rest)
    assert answer.triplets[:2] == READ
    assert (len(answer.triplets), answer.begins, answer.whole) == (count, True, False)


NAMES = st.text(max_size=20) | st.sampled_from(['"', "\\", "]}", '"triplets": [', "</think>", "Zoë", "\u2028"])
FACT = st.tuples(NAMES, NAMES, NAMES)


@given(st.lists(FACT, max_size=4), st.booleans())
def test_a_prefix_of_an_answer_has_its_complete_triplets(facts, ascii_only):
    items = [json.dumps(item, ensure_ascii=ascii_only) for item in json.loads(triplets(*facts))["triplets"]]
    text = f'{{"triplets": [{", ".join(items)}]}}'
    read = tuple(Triplet(*fact) for fact in facts)
    assert read_answer(text) == Answer(read, begins=True, whole=True)
    begin = len('{"triplets": [')
    ends = [begin + len(", ".join(items[:count])) for count in range(1, len(items) + 1)]
    for length in range(len(text)):
        part = read_answer(text[:length])
        assert part.triplets == read[: sum(end <= length for end in ends)]
        assert part.begins == (length >= begin)
        assert part.whole == (length == len(text) - 1)


@given(st.text())
def test_any_text_is_read(text: str):
    answer = read_answer(text)
    assert answer.begins or answer == Answer()


def test_ten_thousand_triplets_take_no_time():
    many = triplets(*((f"Person {number}", "knows", f"Person {number + 1}") for number in range(10_000)))
    began = time.thread_time()
    assert len(read_answer(many).triplets) == 10_000
    assert len(read_answer(many[:-1000]).triplets) > 9_900
    assert time.thread_time() - began < 2
