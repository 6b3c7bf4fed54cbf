"""Assign documents and keys to shards."""

from blake3 import blake3


def shard_of(shards: int, *names: str) -> int:
    """Return the shard, from 0, for these names. Evenly distributed, and equal in every process and release."""
    # Names may contain lone surrogates. The shard refuses them.
    named = "\0".join(names).encode("utf-8", "surrogatepass")
    return int.from_bytes(blake3(named).digest(length=8), "big") % shards
