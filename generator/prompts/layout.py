"""The order of a prompt: system prompt, documents, conversation, each tokenised on its own (design: segments).

    [system S] [doc 1] ... [doc k] [question]

The chat template is rendered once with marks in place of all foreign text and cut at the marks. So a document's ids
depend on its text alone, the ids before the documents on the system prompt alone, and control tokens come only from
the template.
"""

import re
from collections.abc import Iterator, Sequence

from blake3 import blake3

from generator.prompts.tokenizer import ModelTokenizer, TemplateRefusal
from protocol.errors import InvalidRequest, QuestionTooLong
from protocol.prompts import ChatMessage, Prompt, Segment, SegmentKind
from protocol.retrieval import Chunk

_DOCUMENTS_MARK = "\x02documents\x03"
_MARK = re.compile("\x02(documents|[0-9]+)\x03")


class SegmentLayout:
    """Lays prompts out for one model; implements ``protocol.parts.PromptLayout``.

    ``max_model_len`` bounds prompt plus answer, in tokens.
    """

    def __init__(self, tokenizer: ModelTokenizer, system_prompt: str, max_model_len: int) -> None:
        self._tokenizer = tokenizer
        self._system_prompt = system_prompt
        self._max_model_len = max_model_len

    def lay_out(self, messages: Sequence[ChatMessage], documents: Sequence[Chunk], max_tokens: int) -> Prompt:
        """Lay out documents in front of a conversation; its own system message takes the place of ours.

        Documents that do not fit are dropped from the tail. Raises QuestionTooLong when even without them the model's
        context is exceeded, InvalidRequest when the model's template does not take such a conversation.
        """
        system, question = self._frame(messages)
        room = self._max_model_len - max_tokens - len(system.token_ids) - len(question.token_ids)
        if room < 0:
            raise QuestionTooLong(
                f"the question takes {len(system.token_ids) + len(question.token_ids)} tokens with the system prompt, "
                f"the answer may take {max_tokens}, and the model's context is {self._max_model_len} tokens",
                # What has to shrink: there would be room for the question, but for the length of the answer.
                param="max_tokens" if room + max_tokens > 0 else "messages",
            )
        kept = list(self._fitting(documents, room))
        return Prompt(segments=(system, *kept, question), dropped_documents=len(documents) - len(kept))

    def _fitting(self, documents: Sequence[Chunk], room: int) -> Iterator[Segment]:
        for document in documents:
            token_ids = self._tokenizer.encode(f"{document.text}\n\n")
            room -= len(token_ids)
            if room < 0:
                return
            yield Segment(SegmentKind.DOCUMENT, document.content_hash, token_ids)

    def _frame(self, messages: Sequence[ChatMessage]) -> tuple[Segment, Segment]:
        """The segments before and behind the documents."""
        conversation = list(messages)
        system_text = self._system_prompt
        if conversation and conversation[0].role in ("system", "developer"):
            system_text = conversation.pop(0).content
        if not conversation or conversation[-1].role != "user":
            raise InvalidRequest("the last message must be the user's", param="messages")
        contents = [system_text, *(message.content for message in conversation)]
        rendered = self._render([message.role for message in conversation])
        head, tail = rendered.split(_DOCUMENTS_MARK, maxsplit=1)
        return self._segment(SegmentKind.SYSTEM, head, contents), self._segment(SegmentKind.QUESTION, tail, contents)

    def _render(self, roles: Sequence[str]) -> str:
        """The conversation's template with a mark for each content, and one for the documents before the first turn."""
        marks = [f"\x02{number}\x03" for number in range(1, len(roles) + 1)]
        marks[0] = _DOCUMENTS_MARK + marks[0]
        turns = [ChatMessage(role, mark) for role, mark in zip(roles, marks, strict=True)]
        try:
            return self._complete([ChatMessage("system", "\x020\x03"), *turns])
        except TemplateRefusal:
            # Some models know no system role: what we would say there opens the first turn instead.
            turns[0] = ChatMessage(roles[0], f"\x020\x03\n\n{marks[0]}")
        try:
            return self._complete(turns)
        except TemplateRefusal as refusal:
            raise InvalidRequest(f"the model takes no such conversation: {refusal}", param="messages") from refusal

    def _complete(self, turns: Sequence[ChatMessage]) -> str:
        """The rendered turns. Raises TemplateRefusal where the template, as some do in silence, leaves one out."""
        rendered = self._tokenizer.render(turns)
        for turn in turns:
            if any(mark.group() not in rendered for mark in _MARK.finditer(turn.content)):
                raise TemplateRefusal(f"its template leaves out what the {turn.role} says")
        return rendered

    def _segment(self, kind: SegmentKind, marked: str, contents: Sequence[str]) -> Segment:
        token_ids: list[int] = []
        digest = blake3()
        # re.split with a group alternates between the template's own text and the number of a content.
        for position, piece in enumerate(_MARK.split(marked)):
            own = position % 2 == 0
            text = piece if own else contents[int(piece)]
            encoded = text.encode("utf-8", "surrogatepass")
            # Lengths first, or a content could spell the template's words and pass for another conversation.
            digest.update(len(encoded).to_bytes(8, "big") + encoded)
            token_ids += self._tokenizer.encode_template(text) if own else self._tokenizer.encode(text)
        return Segment(kind, digest.hexdigest(), tuple(token_ids))
