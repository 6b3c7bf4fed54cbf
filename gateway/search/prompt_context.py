"""What of a search's results a prompt would contain."""

from msgspec.structs import replace

from gateway.search.laid_out import laid_out
from protocol.errors import QuestionTooLong
from protocol.graph import ContextBudget
from protocol.parts import PromptLayout
from protocol.prompts import ChatMessage
from protocol.retrieval import CandidateSet


class PromptContext:
    """The results of a search for ``question`` that fit the prompt of a query, which answers in ``max_tokens``."""

    def __init__(self, layout: PromptLayout, question: str, max_tokens: int) -> None:
        self._layout = layout
        self._question = ChatMessage("user", question)
        self._max_tokens = max_tokens

    async def fitting(self, found: CandidateSet, budget: ContextBudget) -> CandidateSet:
        """The results and paths that the prompt would contain. Raises QuestionTooLong, which names the query."""
        paths = () if found.graph is None else found.graph.paths
        try:
            prompt = await laid_out(
                self._layout, [self._question], found.docs, self._max_tokens, paths=paths, budget=budget
            )
        except QuestionTooLong as error:
            raise QuestionTooLong(error.message, "query" if error.param == "messages" else error.param) from error
        kept = len(found.docs) - prompt.dropped_documents
        told = tuple(paths[place] for place in prompt.paths)
        return replace(
            found,
            docs=found.docs[:kept],
            scores=found.scores[:kept],
            dense_scores=found.dense_scores[:kept],
            sparse_scores=found.sparse_scores[:kept],
            graph=None if found.graph is None else replace(found.graph, paths=told),
        )

    def text(self, found: CandidateSet) -> str:
        """The text of these results and paths as it stands in a prompt."""
        return self._layout.context_text(found.docs, () if found.graph is None else found.graph.paths)
