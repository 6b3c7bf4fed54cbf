"""Every error that RAGTree raises on purpose.

    RagtreeError                 the root; never raised itself
      InvalidRequest             the request can never succeed as it stands
        TooManyValues            the body consists of more values than are parsed
        UnknownFilterKey         a filter names an attribute that no document of the collection has
        QuestionTooLong          system prompt, question and answer alone exceed the model's context
        InvalidEncoding          text that should be UTF-8 is not
        UnsupportedParameter     a parameter of another API that RAGTree does not serve
      Unauthenticated            no API key, or an unknown one
      PermissionDenied           the key is known, but may not do this
      NotFound                   what the request names does not exist
        UnknownCollection        the collection has never had a document
        UnknownDocument          the collection has no document of this id
        UnknownChunk             the document has no chunk of this id, or has been replaced
        UnknownEntity            the collection's graph has no entity of this name
        UnknownJob               no ingestion job has this id
        UnknownModel             the stack serves another model
        UnknownPlan              no query holds a plan of this id, or the plan is already complete
        UnknownNode              the knowledge tree has no such node
        UnknownInstance          no instance has this name
      Conflict                   the request contradicts the state of the stack, and will until that changes
        NoDocuments              the collection holds nothing to search yet
        NoGraph                  the collection has no graph, or not yet
        IdempotencyMismatch      an Idempotency-Key was used again with another body
        PinRefused               the tier's limit of pinned tokens is reached
      PayloadTooLarge            the body exceeds the configured limit
      UnsupportedMediaType       no loader reads this content type
      UnreadableDocument         no text can be extracted from the document
        EmptyDocument            it has no text
        EncryptedDocument        it needs a password
        BrokenDocument           its bytes do not parse
      RateLimited                the caller's own quota is used up
      Unavailable                the stack cannot serve this now; try again later
        Overloaded               the queue is full
        EngineNotReady           the engine is loading or restarting
        EngineDied               the engine died while it served this request
        RetrieverNotReady        the index is loading or restarting
        ShardTimeout             a shard of the index did not answer in time
        RerankFailed             the reranker did not order the documents
        DeployFailed             a part of the stack failed to start and will not be tried again
        DeadlineExceeded         the query's deadline passed before its answer was complete
      StorageFull                the disk is full; nothing was stored
      ConfigError                the configuration is not valid
        UnknownPolicy            no replacement policy has this name
      EngineFailed               the engine failed while it computed this request; do not send it again
      InternalError              a defect of RAGTree; its details are in the log, not in the message
        IngestionAbandoned       the retriever did not survive ingesting a document, or has too little memory for it

An error has a message for people and a ``code`` for programs. If one request field is to blame, ``param`` names it.
Only the gateway knows HTTP statuses.
"""

from typing import ClassVar

from protocol.retrieval import RerankFailure


class RagtreeError(Exception):
    """Root of the tree: a message for people, a stable ``code`` for programs, and the offending field in ``param``."""

    code: ClassVar[str] = "error"

    def __init__(self, message: str, param: str | None = None) -> None:
        # Exception.args must hold both: pickling rebuilds the error from them.
        super().__init__(message, param)
        self.message = message
        self.param = param

    def __str__(self) -> str:
        return self.message


class InvalidRequest(RagtreeError):
    """The request can never succeed as it stands."""

    code = "invalid_request"


class TooManyValues(InvalidRequest):
    """The body consists of more values than are parsed."""

    code = "too_many_values"


class UnknownFilterKey(InvalidRequest):
    """A filter names an attribute that no document of the collection has."""

    code = "unknown_filter_key"


class QuestionTooLong(InvalidRequest):
    """System prompt, question and answer alone exceed the model's context."""

    code = "question_too_long"


class InvalidEncoding(InvalidRequest):
    """Text that should be UTF-8 is not."""

    code = "invalid_encoding"


class UnsupportedParameter(InvalidRequest):
    """The request sets a parameter of another API that RAGTree does not serve."""

    code = "unsupported_parameter"


class Unauthenticated(RagtreeError):
    """The request has no API key, or an unknown one."""

    code = "invalid_api_key"


class PermissionDenied(RagtreeError):
    """The key is known, but may not do this."""

    code = "permission_denied"


class NotFound(RagtreeError):
    """What the request names does not exist."""

    code = "not_found"


class UnknownCollection(NotFound):
    """The collection has never had a document."""

    code = "unknown_collection"


class UnknownDocument(NotFound):
    """The collection has no document of this id."""

    code = "unknown_document"


class UnknownChunk(NotFound):
    """The document has no chunk of this id, or has been replaced."""

    code = "unknown_chunk"


class UnknownEntity(NotFound):
    """The collection's graph has no entity of this name."""

    code = "unknown_entity"


class UnknownJob(NotFound):
    """No ingestion job has this id."""

    code = "unknown_job"


class UnknownModel(NotFound):
    """The stack serves another model."""

    code = "model_not_found"


class UnknownPlan(NotFound):
    """No query holds a plan of this id, or the plan is already complete."""

    code = "unknown_plan"


class UnknownNode(NotFound):
    """The knowledge tree has no such node."""

    code = "unknown_node"


class UnknownInstance(NotFound):
    """No instance has this name."""

    code = "unknown_instance"


class Conflict(RagtreeError):
    """The request contradicts the state of the stack, and will until that changes."""

    code = "conflict"


class NoDocuments(Conflict):
    """The collection holds nothing to search yet."""

    code = "no_documents"


class NoGraph(Conflict):
    """The collection has no graph, or not yet."""

    code = "no_graph"


class IdempotencyMismatch(Conflict):
    """An ``Idempotency-Key`` was used again with another body."""

    code = "idempotency_mismatch"


class PinRefused(Conflict):
    """The tier's limit of pinned tokens is reached."""

    code = "pin_refused"


class PayloadTooLarge(RagtreeError):
    """The body exceeds the configured limit."""

    code = "payload_too_large"


class UnsupportedMediaType(RagtreeError):
    """No loader reads this content type."""

    code = "unsupported_media_type"


class UnreadableDocument(RagtreeError):
    """No text can be extracted from a document of a known type."""

    code = "unreadable_document"


class EmptyDocument(UnreadableDocument):
    """The document has no text."""

    code = "empty_document"


class EncryptedDocument(UnreadableDocument):
    """The document needs a password."""

    code = "encrypted_document"


class BrokenDocument(UnreadableDocument):
    """The document's bytes do not parse."""

    code = "broken_document"


class RateLimited(RagtreeError):
    """The caller's own quota is used up. It has room again in ``retry_after_s`` seconds, if that is known."""

    code = "rate_limited"

    def __init__(self, message: str, param: str | None = None, retry_after_s: int | None = None) -> None:
        super().__init__(message, param)
        self.args = (message, param, retry_after_s)
        self.retry_after_s = retry_after_s


class Unavailable(RagtreeError):
    """The stack cannot serve this now. The caller may try again later."""

    code = "unavailable"


class Overloaded(Unavailable):
    """The queue is full."""

    code = "overloaded"


class EngineNotReady(Unavailable):
    """The engine is loading or restarting."""

    code = "engine_not_ready"


class EngineDied(Unavailable):
    """The engine died while it served this request. ``begun``: the request may have been computed by then."""

    code = "engine_died"

    def __init__(self, message: str, param: str | None = None, begun: bool = True) -> None:
        super().__init__(message, param)
        self.args = (message, param, begun)
        self.begun = begun


class RetrieverNotReady(Unavailable):
    """The index is loading or restarting."""

    code = "retriever_not_ready"


class ShardTimeout(Unavailable):
    """A shard of the index did not answer in time."""

    code = "shard_timeout"


class RerankFailed(Unavailable):
    """The reranker did not order the documents. ``failure`` says why. Searches go on without it."""

    code = "rerank_failed"

    def __init__(
        self, message: str, param: str | None = None, failure: RerankFailure = RerankFailure.UNAVAILABLE
    ) -> None:
        super().__init__(message, param)
        self.args = (message, param, failure)
        self.failure = failure


class DeployFailed(Unavailable):
    """A part of the stack failed to start and will not be tried again. The configuration has to change first."""

    code = "deploy_failed"


class DeadlineExceeded(Unavailable):
    """The query's deadline passed before its answer was complete."""

    code = "deadline_exceeded"


class StorageFull(RagtreeError):
    """The disk is full; nothing was stored."""

    code = "storage_full"


class ConfigError(RagtreeError):
    """The configuration is not valid."""

    code = "config_error"


class UnknownPolicy(ConfigError):
    """No replacement policy has this name."""

    code = "unknown_policy"


class EngineFailed(RagtreeError):
    """The engine failed while it computed this request, which is given to no other one: it may fail as well."""

    code = "engine_failed"


class InternalError(RagtreeError):
    """A defect of RAGTree; its details are in the log, not in the message."""

    code = "internal_error"

    @classmethod
    def logged(cls) -> "InternalError":
        """The error of an exception that nothing expected, and that has been logged."""
        return cls("RAGTree had an internal error; its log has the details.")


class IngestionAbandoned(InternalError):
    """The retriever did not survive ingesting a document, or has too little memory for it. It is not tried again."""

    code = "ingestion_abandoned"
