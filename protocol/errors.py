"""Every error that RAGTree raises on purpose, one sentence each.

    RagtreeError                 the root; never raised itself
      InvalidRequest             the request can never succeed as it stands
        UnknownFilterKey         a filter names an attribute that no document of the collection has
        QuestionTooLong          system prompt, question and answer alone exceed the model's context
        InvalidEncoding          text that should be UTF-8 is not
      Unauthenticated            no API key, or one that nobody issued
      PermissionDenied           the key is known, but may not do this
      NotFound                   what the request names does not exist
        UnknownCollection        no document was ever put into this collection
        UnknownDocument          the collection has no document of this id
        UnknownJob               no ingestion job has this id
        UnknownModel             the stack serves another model
        UnknownPlan              no query holds a plan of this id: none ever did, or it was completed before
        UnknownNode              the knowledge tree has no such node
        UnknownInstance          no instance has this name
      Conflict                   the request contradicts the state of the stack, and will until that changes
        NoDocuments              the collection holds nothing to search yet
        IdempotencyMismatch      an Idempotency-Key was used again with another body
        PinRefused               as much of a tier is pinned as may be
      PayloadTooLarge            the body exceeds the configured limit
      UnsupportedMediaType       no loader reads this content type
      UnreadableDocument         a document of a known type from which no text can be had
        EmptyDocument            it has no text
        EncryptedDocument        it asks for a password
        BrokenDocument           its bytes do not parse
      RateLimited                the caller's own quota is used up
      Unavailable                the stack cannot serve this now, but will again
        Overloaded               every queue place is taken
        EngineNotReady           the engine is still loading, or being restarted
        EngineDied               the engine went away under this request
        RetrieverNotReady        the index is still loading, or being restarted
        ShardTimeout             a shard of the index did not answer in time
        DeployFailed             a part of the stack could not be started, and is not tried again
        DeadlineExceeded         the query's time was up before its answer was complete
      StorageFull                the disk has no room for what should be stored; nothing of it was kept
      ConfigError                the configuration cannot be used as it stands
        UnknownPolicy            no replacement policy has this name
      InternalError              a defect of RAGTree; its details are in the log, not in the message

An error carries a message for people, a ``code`` for programs and, where one request field is to blame, its name in
``param``. The gateway alone knows HTTP statuses.
"""

from typing import ClassVar


class RagtreeError(Exception):
    """Root of the tree: a message for people, a stable ``code`` for programs, the offending field in ``param``."""

    code: ClassVar[str] = "error"

    def __init__(self, message: str, param: str | None = None) -> None:
        # Both go to Exception.args, so that the error survives pickling between processes.
        super().__init__(message, param)
        self.message = message
        self.param = param

    def __str__(self) -> str:
        return self.message


class InvalidRequest(RagtreeError):
    """The request can never succeed as it stands."""

    code = "invalid_request"


class UnknownFilterKey(InvalidRequest):
    """A filter names an attribute that no document of the collection has."""

    code = "unknown_filter_key"


class QuestionTooLong(InvalidRequest):
    """System prompt, question and answer alone exceed the model's context."""

    code = "question_too_long"


class InvalidEncoding(InvalidRequest):
    """Text that should be UTF-8 is not."""

    code = "invalid_encoding"


class Unauthenticated(RagtreeError):
    """No API key, or one that nobody issued."""

    code = "invalid_api_key"


class PermissionDenied(RagtreeError):
    """The key is known, but may not do this."""

    code = "permission_denied"


class NotFound(RagtreeError):
    """What the request names does not exist."""

    code = "not_found"


class UnknownCollection(NotFound):
    """No document was ever put into this collection."""

    code = "unknown_collection"


class UnknownDocument(NotFound):
    """The collection has no document of this id."""

    code = "unknown_document"


class UnknownJob(NotFound):
    """No ingestion job has this id."""

    code = "unknown_job"


class UnknownModel(NotFound):
    """The stack serves another model."""

    code = "model_not_found"


class UnknownPlan(NotFound):
    """No query holds a plan of this id: none ever did, or it was completed before."""

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


class IdempotencyMismatch(Conflict):
    """An ``Idempotency-Key`` was used again with another body."""

    code = "idempotency_mismatch"


class PinRefused(Conflict):
    """As much of a tier is pinned as may be."""

    code = "pin_refused"


class PayloadTooLarge(RagtreeError):
    """The body exceeds the configured limit."""

    code = "payload_too_large"


class UnsupportedMediaType(RagtreeError):
    """No loader reads this content type."""

    code = "unsupported_media_type"


class UnreadableDocument(RagtreeError):
    """A document of a known type from which no text can be had."""

    code = "unreadable_document"


class EmptyDocument(UnreadableDocument):
    """The document has no text."""

    code = "empty_document"


class EncryptedDocument(UnreadableDocument):
    """The document asks for a password."""

    code = "encrypted_document"


class BrokenDocument(UnreadableDocument):
    """The document's bytes do not parse."""

    code = "broken_document"


class RateLimited(RagtreeError):
    """The caller's own quota is used up; in ``retry_after_s`` seconds it has room again, where that is known."""

    code = "rate_limited"

    def __init__(self, message: str, param: str | None = None, retry_after_s: int | None = None) -> None:
        super().__init__(message, param)
        self.args = (message, param, retry_after_s)
        self.retry_after_s = retry_after_s


class Unavailable(RagtreeError):
    """The stack cannot serve this now, but will again."""

    code = "unavailable"


class Overloaded(Unavailable):
    """Every queue place is taken."""

    code = "overloaded"


class EngineNotReady(Unavailable):
    """The engine is still loading, or being restarted."""

    code = "engine_not_ready"


class EngineDied(Unavailable):
    """The engine went away under this request."""

    code = "engine_died"


class RetrieverNotReady(Unavailable):
    """The index is still loading, or being restarted."""

    code = "retriever_not_ready"


class ShardTimeout(Unavailable):
    """A shard of the index did not answer in time."""

    code = "shard_timeout"


class DeployFailed(Unavailable):
    """A part of the stack could not be started, and is not tried again: its configuration has to change first."""

    code = "deploy_failed"


class DeadlineExceeded(Unavailable):
    """The query's time was up before its answer was complete."""

    code = "deadline_exceeded"


class StorageFull(RagtreeError):
    """The disk has no room for what should be stored; nothing of it was kept."""

    code = "storage_full"


class ConfigError(RagtreeError):
    """The configuration cannot be used as it stands."""

    code = "config_error"


class UnknownPolicy(ConfigError):
    """No replacement policy has this name."""

    code = "unknown_policy"


class InternalError(RagtreeError):
    """A defect of RAGTree; its details are in the log, not in the message."""

    code = "internal_error"
