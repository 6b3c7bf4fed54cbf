"""Routing: the longest cached prefix against the load, both in seconds."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from protocol.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import Iterable


class Candidate(NamedTuple):
    """An instance that could take a request.

    ``backlog_s`` are the prefill seconds of the requests that it has taken on. ``prefill_s`` are the request's own
    there, loads included: the more of its documents the instance finds, the fewer.
    """

    instance: str
    backlog_s: float
    prefill_s: float


def route(candidates: Iterable[Candidate]) -> Candidate:
    """The candidate with the request's first token soonest; of equals the first.

    Raises Unavailable if there is no candidate.
    """
    best = min(candidates, key=lambda candidate: candidate.backlog_s + candidate.prefill_s, default=None)
    if best is None:
        raise Unavailable("no instance of the generator is there")
    return best
