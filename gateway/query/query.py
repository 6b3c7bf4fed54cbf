"""A query as the pipeline takes it: validated, with its tenant, without HTTP."""

from uuid import uuid4

import msgspec

from protocol.errors import InvalidRequest
from protocol.generation import Sampling
from protocol.graph import UNBOUNDED, ContextBudget, Path
from protocol.plans import DocumentOrder, Reuse
from protocol.prompts import ChatMessage
from protocol.retrieval import CandidateSet, SearchRequest


def _new_id() -> str:
    return f"query_{uuid4().hex}"


class Query(msgspec.Struct, frozen=True, kw_only=True):
    """One question to one collection. ``caller`` identifies the key that asks.

    ``messages`` is the conversation that ends with the question. ``question_field`` is the request's field that holds
    the question, and ``schema_field`` that of the sampling's JSON schema. ``query_id`` is unique. ``order`` is the
    order of the documents in the prompt. ``reuse`` and ``recompute_share`` are the controller's own if they are None.
    With ``rewrite_from`` above 0, the model first makes a question that stands alone of the last one and this number
    before it, and the search is for that. ``budget`` bounds the prompt's context. With ``context_only``, the answer is
    the context, and nothing is generated. With ``documents_optional``, an unknown or empty collection means an answer
    without documents instead of an error. A query that has ``found`` its documents does not search.
    """

    namespace: str
    caller: str
    model: str
    search: SearchRequest
    messages: tuple[ChatMessage, ...]
    sampling: Sampling
    question_field: str
    schema_field: str = "json_schema"
    include_stages: bool = False
    include_timeline: bool = False
    include_text: bool = False
    order: DocumentOrder = DocumentOrder.RETRIEVAL
    reuse: Reuse | None = None
    recompute_share: float | None = None
    documents_optional: bool = False
    rewrite_from: int = 0
    budget: ContextBudget = UNBOUNDED
    context_only: bool = False
    found: CandidateSet | None = None
    query_id: str = msgspec.field(default_factory=_new_id)

    def alternative(self, number: int, found: CandidateSet) -> "Query":
        """The query of another answer to the same question, from the documents that this one ``found``.

        With a seed, that of the answer is ``number`` more: equal seeds would choose equal tokens.
        """
        seed = None if self.sampling.seed is None else self.sampling.seed + number
        return msgspec.structs.replace(
            self,
            query_id=_new_id(),
            sampling=msgspec.structs.replace(self.sampling, seed=seed),
            rewrite_from=0,
            found=msgspec.structs.replace(found, elapsed_ms=0.0),
        )

    def prompt_paths(self, found: CandidateSet) -> tuple[Path, ...]:
        """The paths that its prompt may tell of those that were ``found``."""
        return () if found.graph is None or self.budget.without_paths else found.graph.paths

    def in_callers_words(self, error: InvalidRequest) -> InvalidRequest:
        """The error with the request's own name of the schema, if that is to blame."""
        return InvalidRequest(error.message, self.schema_field) if error.param == "json_schema" else error
