"""Every error that RAGTree raises on purpose: a message for people, and a ``code`` for programs.

If one request field is to blame, ``param`` names it. Only the gateway knows HTTP statuses. Errors come after the more
general ones that they are kinds of.
"""

from typing import ClassVar

from protocol.retrieval import RerankFailure


class RagtreeError(Exception):
    """Root of the tree: a message for people, a stable ``code`` for programs, and the offending field in ``param``."""

    code: ClassVar[str] = "error"

    def __init_subclass__(cls, code: str | None = None) -> None:
        """Give a kind of error its ``code``."""
        if code is not None:
            cls.code = code

    def __init__(self, message: str, param: str | None = None) -> None:
        # Exception.args must hold both: pickling rebuilds the error from them.
        super().__init__(message, param)
        self.message = message
        self.param = param

    def __str__(self) -> str:
        return self.message


class InvalidRequest(RagtreeError, code="invalid_request"):
    """The request can never succeed as it stands."""


class TooManyValues(InvalidRequest, code="too_many_values"):
    """The body consists of more values than are parsed."""


class UnknownFilterKey(InvalidRequest, code="unknown_filter_key"):
    """A filter names an attribute that no document of the collection has."""


class QuestionTooLong(InvalidRequest, code="question_too_long"):
    """System prompt, question and answer alone exceed the model's context."""


class InvalidEncoding(InvalidRequest, code="invalid_encoding"):
    """Text that should be UTF-8 is not."""


class UnsupportedParameter(InvalidRequest, code="unsupported_parameter"):
    """The request sets a parameter of another API that RAGTree does not serve."""


class Unauthenticated(RagtreeError, code="invalid_api_key"):
    """The request has no API key, or an unknown one."""


class PermissionDenied(RagtreeError, code="permission_denied"):
    """The key is known, but may not do this."""


class NotFound(RagtreeError, code="not_found"):
    """What the request names does not exist."""


class UnknownCollection(NotFound, code="unknown_collection"):
    """The collection has never had a document."""


class UnknownDocument(NotFound, code="unknown_document"):
    """The collection has no document of this id."""


class UnknownChunk(NotFound, code="unknown_chunk"):
    """The document has no chunk of this id, or has been replaced."""


class UnknownEntity(NotFound, code="unknown_entity"):
    """The collection's graph has no entity of this name."""


class UnknownJob(NotFound, code="unknown_job"):
    """No ingestion job has this id."""


class UnknownModel(NotFound, code="model_not_found"):
    """The stack serves another model."""


class UnknownPlan(NotFound, code="unknown_plan"):
    """No query holds a plan of this id, or the plan is already complete."""


class UnknownNode(NotFound, code="unknown_node"):
    """The knowledge tree has no such node."""


class UnknownInstance(NotFound, code="unknown_instance"):
    """No instance has this name."""


class Conflict(RagtreeError, code="conflict"):
    """The request contradicts the state of the stack, and will until that changes."""


class NoDocuments(Conflict, code="no_documents"):
    """The collection holds nothing to search yet."""


class NoGraph(Conflict, code="no_graph"):
    """The collection has no graph, or not yet."""


class IdempotencyMismatch(Conflict, code="idempotency_mismatch"):
    """An ``Idempotency-Key`` was used again with another body."""


class PinRefused(Conflict, code="pin_refused"):
    """The tier's limit of pinned tokens is reached."""


class PayloadTooLarge(RagtreeError, code="payload_too_large"):
    """The body exceeds the configured limit."""


class UnsupportedMediaType(RagtreeError, code="unsupported_media_type"):
    """No loader reads this content type."""


class UnreadableDocument(RagtreeError, code="unreadable_document"):
    """No text can be extracted from a document of a known type."""


class EmptyDocument(UnreadableDocument, code="empty_document"):
    """The document has no text."""


class EncryptedDocument(UnreadableDocument, code="encrypted_document"):
    """The document needs a password."""


class BrokenDocument(UnreadableDocument, code="broken_document"):
    """The document's bytes do not parse."""


class RateLimited(RagtreeError, code="rate_limited"):
    """The caller's own quota is used up. It has room again in ``retry_after_s`` seconds, if that is known."""

    def __init__(self, message: str, param: str | None = None, retry_after_s: int | None = None) -> None:
        super().__init__(message, param)
        self.args = (message, param, retry_after_s)
        self.retry_after_s = retry_after_s


class Unavailable(RagtreeError, code="unavailable"):
    """The stack cannot serve this now. The caller may try again later."""


class Overloaded(Unavailable, code="overloaded"):
    """The queue is full."""


class EngineNotReady(Unavailable, code="engine_not_ready"):
    """The engine is loading or restarting."""


class EngineDied(Unavailable, code="engine_died"):
    """The engine died while it served this request. ``begun``: the request may have been computed by then."""

    def __init__(self, message: str, param: str | None = None, begun: bool = True) -> None:
        super().__init__(message, param)
        self.args = (message, param, begun)
        self.begun = begun


class RetrieverNotReady(Unavailable, code="retriever_not_ready"):
    """The index is loading or restarting."""


class ShardTimeout(Unavailable, code="shard_timeout"):
    """A shard of the index did not answer in time."""


class RerankFailed(Unavailable, code="rerank_failed"):
    """The reranker did not order the documents. ``failure`` says why. Searches go on without it."""

    def __init__(
        self, message: str, param: str | None = None, failure: RerankFailure = RerankFailure.UNAVAILABLE
    ) -> None:
        super().__init__(message, param)
        self.args = (message, param, failure)
        self.failure = failure


class DeployFailed(Unavailable, code="deploy_failed"):
    """A part of the stack failed to start and will not be tried again. The configuration has to change first."""


class DeadlineExceeded(Unavailable, code="deadline_exceeded"):
    """The query's deadline passed before its answer was complete."""


class StorageFull(RagtreeError, code="storage_full"):
    """The disk is full; nothing was stored."""


class ConfigError(RagtreeError, code="config_error"):
    """The configuration is not valid."""


class UnknownPolicy(ConfigError, code="unknown_policy"):
    """No replacement policy has this name."""


class EngineFailed(RagtreeError, code="engine_failed"):
    """The engine failed while it computed this request, which is given to no other one: it may fail as well."""


class InternalError(RagtreeError, code="internal_error"):
    """A defect of RAGTree; its details are in the log, not in the message."""

    @classmethod
    def logged(cls) -> "InternalError":
        """The error of an exception that nothing expected, and that has been logged."""
        return cls("RAGTree had an internal error; its log has the details.")


class IngestionAbandoned(InternalError, code="ingestion_abandoned"):
    """The retriever did not survive ingesting a document, or has too little memory for it. It is not tried again."""
