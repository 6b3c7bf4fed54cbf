"""Lays out prompts as segments of token ids, each tokenised on its own.

A document's token ids depend on its text alone, so they are the same wherever the document stands, and so is its key.
``prompt_template`` decides on the wording and the order.
"""

from collections.abc import Iterator, Sequence

from blake3 import blake3

from generator.prompts.prompt_template import PromptTemplate, TextPart
from generator.prompts.tokenizer import ModelTokenizer
from generator.settings import GeneratorSettings
from protocol.errors import QuestionTooLong
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


class SegmentLayout:
    """Lays out prompts for one model. Implements ``protocol.parts.PromptLayout``.

    ``max_model_len`` bounds prompt plus answer, in tokens.
    """

    def __init__(self, tokenizer: ModelTokenizer, system_prompt: str, max_model_len: int, preamble: str = "") -> None:
        self._tokenizer = tokenizer
        self._template = PromptTemplate(tokenizer.chat_template, system_prompt, preamble)
        self._max_model_len = max_model_len

    @classmethod
    def configured(cls, tokenizer: ModelTokenizer, settings: GeneratorSettings) -> "SegmentLayout":
        """The layout of prompts for a generator with these settings, whose model has this ``tokenizer``."""
        return cls(tokenizer, settings.system_prompt, settings.max_model_len, settings.preamble)

    def lay_out(
        self, messages: Sequence[ChatMessage], documents: Sequence[Chunk], max_tokens: int, *, preamble: bool = True
    ) -> Prompt:
        """Lay out documents in front of a conversation. Documents that do not fit are dropped from the tail.

        Raises QuestionTooLong if the model's context is exceeded even without documents, and InvalidRequest if the
        conversation does not end with the user or the model's chat template refuses it.
        """
        frame = self._template.frame(messages, preamble)
        system = self._segment(SegmentKind.SYSTEM, frame.system)
        question = self._segment(SegmentKind.QUESTION, frame.question)
        room = self._max_model_len - max_tokens - len(system.token_ids) - len(question.token_ids)
        if room < 0:
            raise QuestionTooLong(
                f"the question takes {len(system.token_ids) + len(question.token_ids)} tokens with the system prompt, "
                f"the answer may take {max_tokens}, and the model's context is {self._max_model_len} tokens",
                # Name the parameter to reduce: without the answer, the question would fit.
                param="max_tokens" if room + max_tokens > 0 else "messages",
            )
        kept = list(self._fitting(documents, room))
        return Prompt(segments=(system, *kept, question), dropped_documents=len(documents) - len(kept))

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

    def _fitting(self, documents: Sequence[Chunk], room: int) -> Iterator[Segment]:
        for document in documents:
            token_ids = self._document_ids(document.text)
            room -= len(token_ids)
            if room < 0:
                return
            yield Segment(SegmentKind.DOCUMENT, document.content_hash, token_ids)

    def _document_ids(self, text: str) -> tuple[int, ...]:
        return self._tokenizer.encode(self._template.document(text))

    def _segment(self, kind: SegmentKind, parts: Sequence[TextPart]) -> Segment:
        token_ids: list[int] = []
        digest = blake3()
        for text, foreign in parts:
            encoded = text.encode("utf-8", "surrogatepass")
            # With lengths, a text that spells the template's own words has another key than the template.
            digest.update(len(encoded).to_bytes(8, "big") + encoded)
            token_ids += self._tokenizer.encode(text) if foreign else self._tokenizer.encode_template(text)
        return Segment(kind, digest.hexdigest(), tuple(token_ids))
