"""Which instance gets a request: the longest cached prefix against the load, both in seconds."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from protocol.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import Iterable


class Candidate(NamedTuple):
    """An instance that could take a request: prefill seconds of all that it has taken on, and of the request there.

    ``prefill_s``, what is loaded first included, is the shorter the more of the request's documents the instance finds.
    """

    instance: str
    backlog_s: float
    prefill_s: float


def route(candidates: Iterable[Candidate]) -> Candidate:
    """The one that has the request's first token soonest; among equals the one that is named first.

    Raises Unavailable when there is no instance.
    """
    best = min(candidates, key=lambda candidate: candidate.backlog_s + candidate.prefill_s, default=None)
    if best is None:
        raise Unavailable("no instance of the generator is there")
    return best
