"""What a conversation asks last."""

from gateway.query.follow_ups import last_question
from protocol.prompts import ChatMessage

TALK = [
    ChatMessage("system", "Be brief."),
    ChatMessage("user", "How do I read JSON?"),
    ChatMessage("assistant", "With json.load."),
    ChatMessage("user", "And YAML? "),
    ChatMessage("assistant", "There is no module for it."),
    ChatMessage("user", "  And TOML?"),
]


def test_the_questions_before_a_follow_up_are_its_context():
    assert last_question(TALK, 1, 100) == ("And TOML?", "And YAML?", True)
    assert last_question(TALK, 5, 100) == ("And TOML?", "How do I read JSON?\nAnd YAML?", True)


def test_without_earlier_questions_there_is_no_context():
    assert last_question(TALK, 0, 100) == ("And TOML?", "", True)
    assert last_question(TALK[:2], 2, 100) == ("How do I read JSON?", "", False)


def test_what_would_be_too_long_is_left_out_oldest_first():
    assert last_question(TALK, 2, 20) == ("And TOML?", "And YAML?", True)
    assert last_question(TALK, 2, 3) == ("And TOML?", "", True)


def test_messages_without_text_are_no_questions():
    blank = [*TALK, ChatMessage("user", " \n ")]
    assert last_question(blank, 0, 100) == ("And TOML?", "", True)
    assert last_question([ChatMessage("user", " "), ChatMessage("assistant", "Yes?")], 1, 100) is None
