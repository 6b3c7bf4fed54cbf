"""Keys of nodes: hashes of whole paths, equal in every process and on disk."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import blake2b

KEY_BYTES = 16


def child_key(parent_key: bytes, content: str) -> bytes:
    """The key of a document after a path: H(parent's key, content hash)."""
    return blake2b(content.encode(), key=parent_key, digest_size=KEY_BYTES).digest()


def root_key(namespace: str) -> bytes:
    """The key of a namespace's root. It stands for one tenant, one model's fingerprint and one adapter, if any."""
    return blake2b(namespace.encode(), digest_size=KEY_BYTES).digest()


def path_keys(namespace: str, contents: Sequence[str]) -> list[bytes]:
    """The keys of all nodes on a path, first document first."""
    return keys_below(root_key(namespace), contents)


def keys_below(key: bytes, contents: Iterable[str]) -> list[bytes]:
    """The keys of the nodes of documents after the path with this ``key``, each after the one before it."""
    keys = []
    for content in contents:
        key = child_key(key, content)
        keys.append(key)
    return keys
