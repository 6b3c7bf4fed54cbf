"""Saved indexes: a cache of what the store can rebuild, verified by checksum."""

import contextlib
from pathlib import Path
from typing import NamedTuple

import msgspec
from blake3 import blake3

from retriever.atomic_files import write_atomically
from retriever.index.base import Trained

_FORMAT = "ragtree-index-2"


class SavedIndex(NamedTuple):
    """A saved index: its kind, its state when it was built, and its serialized content."""

    kind: str
    trained: Trained
    dump: bytes


class _Header(msgspec.Struct, frozen=True):
    format: str
    fingerprint: str
    kind: str
    trained: Trained
    checksum: str


class IndexFiles:
    """A folder with one file per collection: a line of JSON as header, then the serialized index."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def save(self, collection: int, fingerprint: str, saved: SavedIndex) -> None:
        """Replace the saved index atomically. Raises OSError."""
        header = _Header(_FORMAT, fingerprint, saved.kind, saved.trained, blake3(saved.dump).hexdigest())
        write_atomically(self._path(collection), msgspec.json.encode(header) + b"\n", saved.dump)

    def load(self, collection: int, fingerprint: str) -> SavedIndex | None:
        """Return the saved index, or None if it is missing, damaged or has another fingerprint."""
        try:
            first, _, dump = self._path(collection).read_bytes().partition(b"\n")
            header = msgspec.json.decode(first, type=_Header)
        except (OSError, msgspec.DecodeError, UnicodeDecodeError):
            return None
        if (header.format, header.fingerprint) != (_FORMAT, fingerprint) or header.checksum != blake3(dump).hexdigest():
            return None
        return SavedIndex(header.kind, header.trained, dump)

    def sweep(self) -> None:
        """Delete the remains of a save that a crash interrupted."""
        for leftover in self._folder.glob("*.tmp"):
            # Folders belong to mapped indexes, and unlink fails for them.
            with contextlib.suppress(OSError):
                leftover.unlink()

    def _path(self, collection: int) -> Path:
        return self._folder / f"{collection}.index"
