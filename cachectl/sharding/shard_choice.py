"""Which shard of the controller a prompt belongs to."""

from xxhash import xxh3_64_intdigest


def shard_of(first_document: str, count: int) -> int:
    """The shard, of ``count``, that owns the sub-trees below a prompt's first document, named by its content.

    Rendezvous hashing (Thaler and Ravishankar, 1998): the shard whose hash with the document is greatest. If a shard is
    added, it takes its part from all others, and nothing else moves.
    """
    name = first_document.encode()
    return max(range(count), key=lambda shard: xxh3_64_intdigest(name, seed=shard))
