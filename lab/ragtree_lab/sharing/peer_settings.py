"""Whether machines serve each other what they hold."""

import secrets
from pathlib import Path

from generator.settings import PeerSettings

_HOST = "127.0.0.1"


def sharing_peers(folder: Path) -> PeerSettings:
    """Settings of machines that share with each other, with a new key in ``folder``."""
    key_file = folder / "peers.key"
    key_file.touch(mode=0o600)
    key_file.write_text(secrets.token_urlsafe(32))
    return PeerSettings(key_file=key_file, host=_HOST)


def lonely_peers() -> PeerSettings:
    """Settings of machines that serve nothing to each other."""
    return PeerSettings(host=_HOST)
