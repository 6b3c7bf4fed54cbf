"""What the model is asked to rewrite, and what counts as a question in its answer."""

import pytest

from gateway.query.follow_ups import REWRITING, question_in, rewriting_prompt
from protocol.prompts import ChatMessage

TALK = (
    ChatMessage("system", "Answer like a pirate."),
    ChatMessage("user", "How do I read JSON?"),
    ChatMessage("assistant", "With json.load."),
    ChatMessage("user", " "),
    ChatMessage("user", "And YAML?"),
    ChatMessage("assistant", "x" * 5000),
    ChatMessage("user", " And how do I write it? "),
)


def asked(earlier: int) -> list[str]:
    instruction, conversation = rewriting_prompt(TALK, earlier)
    assert (instruction.role, conversation.role) == ("system", "user")
    assert "pirate" not in instruction.content
    return conversation.content.splitlines()


def test_the_model_sees_the_last_turns_cut_and_the_last_question():
    assert asked(1) == [
        "User: And YAML?",
        f"Assistant: {'x' * 1000}",
        "",
        "Last question: And how do I write it?",
        "",
        "Rewritten question:",
    ]


@pytest.mark.parametrize("earlier", [2, 3, 100])
def test_it_sees_no_more_than_there_is(earlier):
    assert asked(earlier)[:3] == ["User: How do I read JSON?", "Assistant: With json.load.", "User: And YAML?"]


def test_a_line_ends_the_question():
    assert REWRITING.stop == ("\n",)
    assert REWRITING.greedy


@pytest.mark.parametrize(
    ("text", "question"),
    [
        (" How do I write JSON? ", "How do I write JSON?"),
        ('"How do I write JSON?"', "How do I write JSON?"),
        ("“Wie schreibe ich JSON?”", "Wie schreibe ich JSON?"),
        ("", ""),
        (" \n", ""),
        ('"..."', ""),
    ],
)
def test_quotation_marks_are_no_part_of_a_question(text, question):
    assert question_in(text) == question
