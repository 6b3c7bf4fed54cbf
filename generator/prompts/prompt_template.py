"""The prompt template: what stands where in a prompt. Change the wording and the order of prompts here.

    [system prompt, preamble] [document 1] ... [document k] [facts] [conversation]

Facts are the paths of a collection's graph. They differ from question to question. So they come after the documents,
whose KV is kept.

The default system prompt and the preamble, which opens the user's turn, are the options ``generator.system_prompt`` and
``generator.preamble``. The model's chat template is rendered once, with marks in place of all texts that come from
outside, and split at the marks. So a document's token ids depend on its text alone, the ids before the documents
depend on the system prompt and the preamble alone, and control tokens come only from the chat template.
"""

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from generator.prompts.chat_template import ChatTemplate, TemplateRefusal
from protocol.errors import InvalidRequest
from protocol.prompts import ChatMessage

_DOCUMENTS_MARK = "\x02documents\x03"
_MARK = re.compile("\x02(documents|[0-9]+)\x03")


class TextPart(NamedTuple):
    """A part of a prompt's text: the chat template's own, or ``foreign`` text from outside."""

    text: str
    foreign: bool


class Frame(NamedTuple):
    """The parts of a prompt before the documents and after them."""

    system: list[TextPart]
    question: list[TextPart]


class PromptTemplate:
    """The texts of a prompt, from a model's ``chat_template``, the default ``system_prompt``, and the ``preamble``."""

    def __init__(self, chat_template: ChatTemplate, system_prompt: str, preamble: str = "") -> None:
        self._chat_template = chat_template
        self._system_prompt = system_prompt
        self._preamble = f"{preamble}\n\n" if preamble else ""

    def document(self, text: str) -> str:
        """A document as it stands in the prompt."""
        return f"{text}\n\n"

    def facts(self, paths: Sequence[str]) -> list[str]:
        """The facts as they stand in the prompt: a heading, a line for each path, and an end."""
        return ["Facts:\n", *(f"{' '.join(path.split())}\n" for path in paths), "\n"]

    def frame(self, messages: Sequence[ChatMessage], preamble: bool = True) -> Frame:
        """The text around the documents. They come after the preamble, if there is one, before the first turn's text.

        A system or developer message at the start of the conversation replaces the default system prompt. Raises
        InvalidRequest if the last message is not the user's, or if the chat template refuses the conversation.
        """
        conversation = list(messages)
        system_text = self._system_prompt
        if conversation and conversation[0].role in ("system", "developer"):
            system_text = conversation.pop(0).content
        if not conversation or conversation[-1].role != "user":
            raise InvalidRequest("the last message must be the user's", param="messages")
        contents = [system_text, self._preamble if preamble else "", *(message.content for message in conversation)]
        rendered = self._render([message.role for message in conversation])
        head, tail = rendered.split(_DOCUMENTS_MARK, maxsplit=1)
        return Frame(list(_parts(head, contents)), list(_parts(tail, contents)))

    def _render(self, roles: Sequence[str]) -> str:
        """The rendered chat template, with a mark for each text and one for the documents."""
        marks = [f"\x02{number}\x03" for number in range(2, len(roles) + 2)]
        marks[0] = f"\x021\x03{_DOCUMENTS_MARK}{marks[0]}"
        turns = [ChatMessage(role, mark) for role, mark in zip(roles, marks, strict=True)]
        try:
            return self._render_all([ChatMessage("system", "\x020\x03"), *turns])
        except TemplateRefusal:
            # Some models have no system role. The system prompt opens the first turn instead.
            turns[0] = ChatMessage(roles[0], f"\x020\x03\n\n{marks[0]}")
        try:
            return self._render_all(turns)
        except TemplateRefusal as refusal:
            raise InvalidRequest(
                f"the model does not accept this conversation: {refusal}", param="messages"
            ) from refusal

    def _render_all(self, turns: Sequence[ChatMessage]) -> str:
        """The rendered turns. Raises TemplateRefusal if the chat template refuses a turn or silently omits one."""
        rendered = self._chat_template.render(turns)
        kept = set(_MARK.findall(rendered))
        for turn in turns:
            if not kept.issuperset(_MARK.findall(turn.content)):
                raise TemplateRefusal(f"its chat template omits messages of the role {turn.role!r}")
        return rendered


def _parts(marked: str, contents: Sequence[str]) -> Iterator[TextPart]:
    # re.split with a group alternates between the template's own text and the number of a foreign text.
    for position, part in enumerate(_MARK.split(marked)):
        yield TextPart(part, foreign=False) if position % 2 == 0 else TextPart(contents[int(part)], foreign=True)
