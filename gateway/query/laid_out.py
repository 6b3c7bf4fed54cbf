"""Prompts, laid out where it takes no time from other queries, and what of a search's results they contain."""

from collections.abc import Sequence

from msgspec.structs import replace

from gateway.tasks import ITEM, off_loop
from protocol.errors import QuestionTooLong
from protocol.graph import UNBOUNDED, ContextBudget, Path
from protocol.parts import PromptLayout
from protocol.prompts import ChatMessage, Prompt
from protocol.retrieval import CandidateSet, Chunk


async def laid_out(
    layout: PromptLayout,
    messages: Sequence[ChatMessage],
    documents: Sequence[Chunk],
    max_tokens: int,
    *,
    preamble: bool = True,
    paths: Sequence[Path] = (),
    budget: ContextBudget = UNBOUNDED,
    owner: str | None = None,
) -> Prompt:
    """What ``PromptLayout.lay_out`` returns. Raises what it raises."""
    characters = sum(ITEM + len(message.content) for message in messages)
    characters += sum(len(document.text) for document in documents)
    characters += sum(len(path.text) for path in paths)
    return await off_loop(
        characters,
        lambda: layout.lay_out(
            messages, documents, max_tokens, preamble=preamble, paths=paths, budget=budget, owner=owner
        ),
    )


async def fitting(
    layout: PromptLayout, question: str, found: CandidateSet, max_tokens: int, budget: ContextBudget
) -> CandidateSet:
    """The results and paths of a search that the prompt of a query would contain, which answers in ``max_tokens``.

    Raises QuestionTooLong, which names the query.
    """
    paths = () if found.graph is None else found.graph.paths
    try:
        prompt = await laid_out(
            layout, [ChatMessage("user", question)], found.docs, max_tokens, paths=paths, budget=budget
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
