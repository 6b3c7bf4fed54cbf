"""Which shard of the controller a prompt belongs to."""

from xxhash import xxh3_64_intdigest


def shard_of(namespace: str, first_document: str, count: int) -> int:
    """The shard, of ``count``, that owns the sub-tree below a namespace's first document.

    Rendezvous hashing (Thaler and Ravishankar, 1998): the shard whose hash with the document is greatest. If a shard is
    added, it takes its part from all others, and nothing else moves.
    """
    # The length keeps two parts from being read as one.
    name = f"{len(namespace)}/{namespace}{first_document}"
    return max(range(count), key=lambda shard: xxh3_64_intdigest(name.encode(), seed=shard))
