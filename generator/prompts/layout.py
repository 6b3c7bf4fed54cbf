"""Lays out prompts as segments of token ids, each tokenised on its own.

A document's token ids depend on its text alone, so they are the same wherever the document stands, and so is its key.
``prompt_template`` decides on the wording and the order.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from blake3 import blake3

from generator.prompts.dependency_trees import dependency_trees
from generator.prompts.document_tokens import DocumentTokens
from generator.prompts.prompt_template import PromptTemplate, TextPart
from generator.prompts.tokenizer import ModelTokenizer
from generator.settings import GeneratorSettings
from protocol.dependency import DepPrompt
from protocol.errors import QuestionTooLong
from protocol.graph import UNBOUNDED, ContextBudget, Path
from protocol.prompts import ChatMessage, Prompt, Segment, SegmentKind
from protocol.retrieval import Chunk

_PROBES = (
    "",
    "The quick brown fox doesn't jump: 3.14 < 2718 (HTTP/1.1, x_1, #42)?",
    "  def f(x):\n\treturn {'a': x[0]}\n\n\n# ends with blanks and lines  \r\n\n",
    "Gr\u00f6\u00dfe, e\u0301, \u1e9b\u0323, \ufb01, \u00bd, \u2167, \u212a, \u0130",
    "\u4e2d\u6587\uff0c\u65e5\u672c\u8a9e \ud55c\uad6d\uc5b4 \u0627\u0644\u0639\u0631 \u0939\u093f\u0928",
    "\U0001f469\u200d\U0001f52c",
    "\x00\x02documents\x03\x7f\u00a0\u200b\ufeff\ufffd",
    "word " * 9_000,
)
"""Texts that tokenizers differ in: punctuation, numbers, spaces, lines, normal forms, scripts, signs, and length."""


_FACTS_SHARE = 0.25
"""The most of a prompt's room that facts take by default. Documents say more, in the words of their authors."""


class _Facts(NamedTuple):
    """The facts of a prompt, if there are any, and the places of their paths among those given."""

    segments: tuple[Segment, ...] = ()
    places: tuple[int, ...] = ()
    trees: DepPrompt | None = None

    @property
    def token_count(self) -> int:
        return sum(len(segment.token_ids) for segment in self.segments)


class SegmentLayout:
    """Lays out prompts for one model. Implements ``protocol.parts.PromptLayout``.

    ``max_model_len`` bounds prompt plus answer, in tokens.
    """

    def __init__(self, tokenizer: ModelTokenizer, system_prompt: str, max_model_len: int, preamble: str = "") -> None:
        self._tokenizer = tokenizer
        self._template = PromptTemplate(tokenizer.chat_template, system_prompt, preamble)
        self._document_tokens = DocumentTokens(self._document_ids)
        self._max_model_len = max_model_len

    @classmethod
    def configured(cls, tokenizer: ModelTokenizer, settings: GeneratorSettings) -> "SegmentLayout":
        """The layout of prompts for a generator with these settings, whose model has this ``tokenizer``."""
        return cls(tokenizer, settings.system_prompt, settings.max_model_len, settings.preamble)

    def lay_out(
        self,
        messages: Sequence[ChatMessage],
        documents: Sequence[Chunk],
        max_tokens: int,
        *,
        preamble: bool = True,
        paths: Sequence[Path] = (),
        budget: ContextBudget = UNBOUNDED,
        owner: str | None = None,
    ) -> Prompt:
        """Lay out documents and paths before a conversation. Documents that do not fit are dropped from the tail.

        Without their own budget, paths take up to a quarter of the room. Documents have the rest. Raises
        QuestionTooLong if the model's context or the budget is exceeded even without documents, and InvalidRequest if
        the conversation does not end with the user or the model's chat template refuses it.
        """
        if len(messages) > self._max_model_len:
            raise QuestionTooLong(
                f"the conversation has {len(messages)} messages, and the model's context is {self._max_model_len} "
                "tokens",
                param="messages",
            )
        frame = self._template.frame(messages, preamble)
        system = self._segment(SegmentKind.SYSTEM, frame.system)
        question = self._segment(SegmentKind.QUESTION, frame.question)
        room = self._room(len(system.token_ids) + len(question.token_ids), max_tokens, budget)
        facts = self._facts(paths, room, budget)
        kept = list(self._fitting(documents, owner, room - facts.token_count))
        segments = (system, *kept, *facts.segments, question)
        return Prompt(segments, len(documents) - len(kept), facts.places, facts.trees)

    def context_text(self, documents: Sequence[Chunk], paths: Sequence[Path]) -> str:
        """The text of these documents and paths as it stands in a prompt."""
        texts = [self._template.document(document.text) for document in documents]
        return "".join(texts + (self._template.facts([path.text for path in paths]) if paths else []))

    @property
    def digest(self) -> str:
        """A digest of how texts become token ids. KV is valid only for layouts with the same one.

        Keys of segments are hashes of texts. So KV of the same key belongs to other tokens once the text around a
        document or the tokenizer changes. The chat template, the system prompt and the preamble are part of a segment's
        text.
        """
        digest = blake3()
        for text in (*_PROBES, "\n".join(self._tokenizer.control_tokens)):
            around = self._segment(SegmentKind.SYSTEM, [TextPart(text, foreign=False), TextPart(text, foreign=True)])
            for token_ids in (self._document_ids(text), around.token_ids):
                digest.update(b"".join(number.to_bytes(4, "big") for number in (len(token_ids), *token_ids)))
        return digest.hexdigest(16)

    def _room(self, fixed: int, max_tokens: int, budget: ContextBudget) -> int:
        """The tokens for documents and facts beside the ``fixed`` ones. Raises QuestionTooLong."""
        room = self._max_model_len - max_tokens - fixed
        if room < 0:
            raise QuestionTooLong(
                f"the question takes {fixed} tokens with the system prompt, "
                f"the answer may take {max_tokens}, and the model's context is {self._max_model_len} tokens",
                # Name the parameter to reduce: without the answer, the question would fit.
                param="max_tokens" if room + max_tokens > 0 else "messages",
            )
        if budget.total is None:
            return room
        if budget.total < fixed:
            raise QuestionTooLong(
                f"the question takes {fixed} tokens with the system prompt, and the prompt may have {budget.total}",
                param="max_total_tokens",
            )
        return min(room, budget.total - fixed)

    def _facts(self, paths: Sequence[Path], room: int, budget: ContextBudget) -> _Facts:
        """The paths that the budget allows, as one segment: up to the first that does not fit.

        Of a root entity whose own budget is used up, the rest is left out.
        """
        if not paths or budget.without_paths:
            return _Facts()
        heading, *lines, end = (TextPart(text, foreign=True) for text in self._template.facts([p.text for p in paths]))
        left = min(room, int(_FACTS_SHARE * room) if budget.relation is None else budget.relation)
        left -= len(self._ids(heading)) + len(self._ids(end))
        spent: dict[str, int] = {}
        places: list[int] = []
        for place, line in enumerate(lines):
            root, tokens = paths[place].entities[0], len(self._ids(line))
            spent[root] = spent.get(root, 0) + tokens
            if budget.entity is not None and spent[root] > budget.entity:
                continue
            left -= tokens
            if left < 0:
                break
            places.append(place)
        if not places:
            return _Facts()
        told = self._segment(SegmentKind.QUESTION, [heading, *(lines[place] for place in places), end])
        kept = [paths[place] for place in places]
        trees = dependency_trees(kept, self._tokenizer.encode, heading.text, end.text)
        return _Facts((told,), tuple(places), trees)

    def _fitting(self, documents: Sequence[Chunk], owner: str | None, room: int) -> Iterator[Segment]:
        for document in documents:
            token_ids = self._document_tokens.of(document, owner)
            room -= len(token_ids)
            if room < 0:
                return
            yield Segment(SegmentKind.DOCUMENT, document.content_hash, token_ids)

    def _document_ids(self, text: str) -> tuple[int, ...]:
        return self._tokenizer.encode(self._template.document(text))

    def _ids(self, part: TextPart) -> tuple[int, ...]:
        return self._tokenizer.encode(part.text) if part.foreign else self._tokenizer.encode_template(part.text)

    def _segment(self, kind: SegmentKind, parts: Sequence[TextPart]) -> Segment:
        token_ids: list[int] = []
        digest = blake3()
        for text, foreign in parts:
            encoded = text.encode("utf-8", "surrogatepass")
            # With lengths, a text that spells the template's own words has another key than the template.
            digest.update(len(encoded).to_bytes(8, "big") + encoded)
            token_ids += self._ids(TextPart(text, foreign))
        return Segment(kind, digest.hexdigest(), tuple(token_ids))
