"""What became of a follow-up that was to be rewritten, on the wire."""

from enum import StrEnum
from typing import Literal

import msgspec


class RewriteFailure(StrEnum):
    """Why a follow-up was searched as it is.

    The model did not rewrite it in time (``timeout``), could not be asked (``failed``), or wrote no question
    (``empty``) or one that did not end (``too_long``).
    """

    TIMEOUT = "timeout"
    FAILED = "failed"
    EMPTY = "empty"
    TOO_LONG = "too_long"


class Rewriting(msgspec.Struct, frozen=True):
    """A follow-up that was to be rewritten before the search, which took ``elapsed_ms`` and ``tokens`` of the model.

    ``question`` is what was searched. If the rewriting ``failed``, ``reason`` says why, and the search was for the
    follow-up joined with the questions before it.
    """

    status: Literal["done", "failed"]
    reason: RewriteFailure | None
    question: str | None
    elapsed_ms: float
    tokens: int
