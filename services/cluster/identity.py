"""What all machines of a stack must have in common. Each tells it to the others as labels of its Ray node."""

import platform
from collections.abc import Mapping
from importlib.metadata import version

import ray

from generator.peers.handshake import PeerKey
from generator.settings import PeerSettings
from services.config import Config

_NO_KEY = "none"
_COMMON = {
    "ragtree.io/version": "RAGTree",
    "ragtree.io/ray": "Ray",
    "ragtree.io/python": "Python",
    "ragtree.io/peers-key": "the key of the peers (generator.kv.peers.key_file)",
}
"""Labels, and what they stand for in messages. A key's label is a digest."""
_RAGTREE, _RAY, _PYTHON, _KEY = _COMMON


def identity_labels(config: Config) -> dict[str, str]:
    """The labels of this machine. Raises ConfigError if the key of the peers cannot be read, or is too short."""
    return {
        _RAGTREE: version("ragtree"),
        _RAY: ray.__version__,
        _PYTHON: platform.python_version(),
        _KEY: _key_label(config.generator.kv.peers),
    }


def difference(first: Mapping[str, str], own: Mapping[str, str]) -> str | None:
    """Say what another machine has other than the ``first`` one of a stack; None if nothing that matters."""
    if _RAGTREE not in first:
        return "it is the head of a Ray that `ragtree up` has not started"
    for label, what in _COMMON.items():
        there, here = first.get(label), own[label]
        if there == here:
            continue
        if label != _KEY:
            return f"it has {what} {there}, and this machine has {here}"
        if _NO_KEY in (there, here):
            return f"only {'this machine' if there == _NO_KEY else 'the first machine'} has {what}"
        return f"it has another secret as {what}"
    return None


def _key_label(peers: PeerSettings) -> str:
    secret = peers.key()
    return _NO_KEY if secret is None else PeerKey(secret).fingerprint
