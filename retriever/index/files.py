"""Indexes on disk: a cache of what the store could rebuild, and never believed without its checksum."""

import contextlib
from pathlib import Path
from typing import NamedTuple

import msgspec
from blake3 import blake3

from retriever.index.base import Trained
from retriever.publishing import publish

_FORMAT = "ragtree-index-2"


class SavedIndex(NamedTuple):
    """An index as saved: what kind of index its dump is of, and what it was when it was built."""

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
    """A folder with one file a collection: a line of JSON that says what the rest is, then the index itself."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def save(self, collection: int, fingerprint: str, saved: SavedIndex) -> None:
        """Publish an index in one step: a reader finds the old file or the new one. Raises OSError."""
        header = _Header(_FORMAT, fingerprint, saved.kind, saved.trained, blake3(saved.dump).hexdigest())
        publish(self._path(collection), msgspec.json.encode(header) + b"\n", saved.dump)

    def load(self, collection: int, fingerprint: str) -> SavedIndex | None:
        """The saved index, or None where there is none, or none of this fingerprint, or its bytes are damaged."""
        try:
            first, _, dump = self._path(collection).read_bytes().partition(b"\n")
            header = msgspec.json.decode(first, type=_Header)
        except (OSError, msgspec.DecodeError, UnicodeDecodeError):
            return None
        if (header.format, header.fingerprint) != (_FORMAT, fingerprint) or header.checksum != blake3(dump).hexdigest():
            return None
        return SavedIndex(header.kind, header.trained, dump)

    def sweep(self) -> None:
        """Remove what a crash in the middle of saving left behind."""
        for leftover in self._folder.glob("*.tmp"):
            # A folder cannot be unlinked, and is not of these files.
            with contextlib.suppress(OSError):
                leftover.unlink()

    def _path(self, collection: int) -> Path:
        return self._folder / f"{collection}.index"
