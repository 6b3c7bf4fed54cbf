"""A prompt layout that counts words."""

from collections.abc import Sequence

from protocol.dependency import Branch, DepPrompt
from protocol.errors import QuestionTooLong
from protocol.graph import UNBOUNDED, ContextBudget, Path
from protocol.prompts import ChatMessage, Prompt, Segment, SegmentKind
from protocol.retrieval import Chunk


class FakeLayout:
    """One token per word. Drops documents from the tail until the prompt fits ``context`` tokens. Paths always fit.

    In trees, all of them are one branch.
    """

    def __init__(self, context: int = 1000) -> None:
        self.context = context
        self.budgets: list[ContextBudget] = []

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
        self.budgets.append(budget)
        question = " ".join(message.content for message in messages)
        kept = list(documents)
        while True:
            prompt = self._prompt(question, kept, len(documents) - len(kept), paths)
            if prompt.token_count + max_tokens <= self.context:
                return prompt
            if not kept:
                raise QuestionTooLong("The question does not fit.", "messages")
            kept.pop()

    def context_text(self, documents: Sequence[Chunk], paths: Sequence[Path]) -> str:
        return "\n".join([document.text for document in documents] + [path.text for path in paths])

    def _prompt(self, question: str, documents: Sequence[Chunk], dropped: int, paths: Sequence[Path]) -> Prompt:
        texts = [(SegmentKind.SYSTEM, "system", "be brief")]
        texts += [(SegmentKind.DOCUMENT, document.content_hash, document.text) for document in documents]
        told = " ".join(path.text for path in paths)
        texts += [(SegmentKind.QUESTION, text, text) for text in (told, question) if text]
        segments = tuple(Segment(kind, key, tuple(range(len(text.split())))) for kind, key, text in texts)
        facts = DepPrompt(segments[-2].token_ids, (Branch(len(told.split()), -1),)) if told else None
        return Prompt(segments, dropped, tuple(range(len(paths))), facts)
