"""A query as the pipeline takes it: validated, its tenant known, free of HTTP."""

from uuid import uuid4

import msgspec

from protocol.generation import Sampling
from protocol.prompts import ChatMessage
from protocol.retrieval import SearchRequest


class Query(msgspec.Struct, frozen=True, kw_only=True):
    """One question to one collection.

    ``messages`` is the conversation that it ends, ``question_field`` the field of the request that carries it.

    With ``documents_optional`` an unknown or empty collection means an answer without documents, not an error.
    """

    query_id: str
    namespace: str
    model: str
    search: SearchRequest
    messages: tuple[ChatMessage, ...]
    sampling: Sampling
    question_field: str
    include_stages: bool = False
    documents_optional: bool = False


def new_query_id() -> str:
    """An id that no other query has."""
    return f"query_{uuid4().hex}"
