"""The fields of a request that bound a prompt's context, in LightRAG's terms."""

from typing import Annotated

from pydantic import BaseModel, Field, StrictBool

from protocol.graph import ContextBudget

MAX_CONTEXT_TOKENS = 1_000_000

_Tokens = Annotated[int, Field(ge=0, le=MAX_CONTEXT_TOKENS)]


class ContextFields(BaseModel):
    """How much of what a search found is in the prompt, in tokens of the model, and whether it is answered at all.

    The first two bound the facts of a graph, so they change nothing in mode ``naive``.
    """

    max_entity_tokens: _Tokens | None = Field(
        default=None, description="Most tokens of the facts about one entity of the question. 0: no facts."
    )
    max_relation_tokens: _Tokens | None = Field(
        default=None,
        description="Most tokens of all facts. 0: no facts. By default, a quarter of what the model's context leaves "
        "beside question and answer.",
    )
    max_total_tokens: Annotated[int, Field(ge=1, le=MAX_CONTEXT_TOKENS)] | None = Field(
        default=None,
        description="Most tokens of the prompt: system prompt, documents, facts and conversation. Documents are left "
        "out from the end.",
    )
    only_need_context: StrictBool = Field(
        default=False, description="Whether the answer is the context that the model would read, instead of its words."
    )

    @property
    def budget(self) -> ContextBudget:
        """The bounds of the prompt's context."""
        return ContextBudget(self.max_entity_tokens, self.max_relation_tokens, self.max_total_tokens)
