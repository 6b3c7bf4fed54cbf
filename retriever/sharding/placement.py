"""Which shard something belongs to."""

from blake3 import blake3


def place_of(shards: int, *names: str) -> int:
    """The shard, from 0, of what has these names: the same in every process and every release, and evenly spread."""
    # Names from outside may hold lone surrogates, and are refused by the shard.
    named = "\0".join(names).encode("utf-8", "surrogatepass")
    return int.from_bytes(blake3(named).digest(length=8), "big") % shards
