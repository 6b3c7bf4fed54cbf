"""Triplets as a column of the store: a JSON array, or NULL for none."""

from collections.abc import Sequence

import msgspec

from protocol.graph import Triplet

_decoder = msgspec.json.Decoder(tuple[Triplet, ...])


def stored(triplets: Sequence[Triplet]) -> str | None:
    """Return what the store keeps of triplets."""
    return msgspec.json.encode(triplets).decode() if triplets else None


def read(column: str | None) -> tuple[Triplet, ...]:
    """Return the triplets that the store has kept."""
    return () if column is None else _decoder.decode(column)
