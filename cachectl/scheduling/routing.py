"""Routing: the longest cached prefix against the load, both in seconds."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from protocol.errors import Unavailable


class Candidate(NamedTuple):
    """An instance that could take a request.

    ``backlog_s`` are the prefill seconds of the requests that it has taken on. ``prefill_s`` are the request's own
    there, loads included: the more of its documents the instance finds, the fewer. Of equal instances, that with the
    lowest ``rank`` is chosen.
    """

    instance: str
    backlog_s: float
    prefill_s: float
    rank: int = 0


def route(candidates: Iterable[Candidate]) -> Candidate:
    """The candidate with the request's first token soonest; of equals that with the lowest rank, or else the first.

    Raises Unavailable if there is no candidate.
    """
    best = min(candidates, key=_preference, default=None)
    if best is None:
        raise Unavailable("no instance of the generator is there")
    return best


def _preference(candidate: Candidate) -> tuple[float, int]:
    return candidate.backlog_s + candidate.prefill_s, candidate.rank
