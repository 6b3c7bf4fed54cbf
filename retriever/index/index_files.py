"""Indexes on disk: a cache of what the store can rebuild, verified by checksums and by the chunks' fingerprint."""

import contextlib
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import msgspec
from blake3 import blake3

from protocol.atomic_files import fsync, write_atomically
from retriever.index.base import Trained

_FORMAT = "ragtree-index-2"

_MAPPED_FORMAT = "ragtree-mapped-1"
_HEADER_FILE = "header.json"


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


class _MappedHeader(msgspec.Struct, frozen=True):
    format: str
    fingerprint: str
    trained: Trained
    checksums: dict[str, str]


class IndexFiles:
    """The saved indexes of all collections in one folder.

    An index that is read into memory is a file: a line of JSON as header, then the serialized index. One that is mapped
    is a folder, and a new version of it gets the next number. Files in it never change: it is written under another
    name, synced and renamed. An index that is still mapped keeps its files when they are deleted.
    """

    def __init__(self, folder: Path, fingerprint: str) -> None:
        self._folder = folder
        self._fingerprint = fingerprint

    def save(self, collection: int, saved: SavedIndex) -> None:
        """Replace the saved index atomically. Raises OSError."""
        header = _Header(_FORMAT, self._fingerprint, saved.kind, saved.trained, blake3(saved.dump).hexdigest())
        write_atomically(self._path(collection), msgspec.json.encode(header) + b"\n", saved.dump)

    def load(self, collection: int) -> SavedIndex | None:
        """Return the saved index, or None if it is missing, damaged or has another fingerprint."""
        try:
            first, _, dump = self._path(collection).read_bytes().partition(b"\n")
            header = msgspec.json.decode(first, type=_Header)
        except (OSError, msgspec.DecodeError, UnicodeDecodeError):
            return None
        whole = header.checksum == blake3(dump).hexdigest()
        if whole and (header.format, header.fingerprint) == (_FORMAT, self._fingerprint):
            return SavedIndex(header.kind, header.trained, dump)
        return None

    def save_mapped(self, collection: int, write: Callable[[Path], Trained]) -> tuple[Path, Trained]:
        """Save the files that ``write`` puts into the given folder, and delete older versions. Raises OSError."""
        self._folder.mkdir(parents=True, exist_ok=True)
        older = self._mapped(collection)
        folder = Path(tempfile.mkdtemp(dir=self._folder, suffix=".tmp"))
        try:
            trained = write(folder)
            checksums = {path.name: _checksum(path) for path in folder.iterdir()}
            header = _MappedHeader(_MAPPED_FORMAT, self._fingerprint, trained, checksums)
            (folder / _HEADER_FILE).write_bytes(msgspec.json.encode(header))
            for path in [*folder.iterdir(), folder]:
                fsync(path)
            saved = self._folder / f"{collection}.{_number(older[-1]) + 1 if older else 1}.mapped"
            folder.rename(saved)
            fsync(self._folder)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        for path in older:
            shutil.rmtree(path, ignore_errors=True)
        return saved, trained

    def find_mapped(self, collection: int) -> tuple[Path, Trained] | None:
        """Return the newest intact folder, or None if there is none with this fingerprint."""
        for folder in self._mapped(collection)[::-1]:
            try:
                header = msgspec.json.decode((folder / _HEADER_FILE).read_bytes(), type=_MappedHeader)
                whole = all(_checksum(folder / name) == checksum for name, checksum in header.checksums.items())
            except (OSError, msgspec.DecodeError, UnicodeDecodeError):
                continue
            if whole and (header.format, header.fingerprint) == (_MAPPED_FORMAT, self._fingerprint):
                return folder, header.trained
        return None

    def discard_mapped(self, collection: int) -> None:
        """Delete a collection's folders."""
        for folder in self._mapped(collection):
            shutil.rmtree(folder, ignore_errors=True)

    def sweep(self) -> None:
        """Delete the remains of a save that a crash interrupted."""
        for leftover in self._folder.glob("*.tmp"):
            if leftover.is_dir():
                shutil.rmtree(leftover, ignore_errors=True)
            else:
                with contextlib.suppress(OSError):
                    leftover.unlink()

    def _path(self, collection: int) -> Path:
        return self._folder / f"{collection}.index"

    def _mapped(self, collection: int) -> list[Path]:
        """Return a collection's folders, newest last. After a crash there may be several."""
        return sorted(self._folder.glob(f"{collection}.*.mapped"), key=_number)


def _number(folder: Path) -> int:
    return int(folder.name.split(".")[1])


def _checksum(path: Path) -> str:
    return blake3(max_threads=blake3.AUTO).update_mmap(path).hexdigest()
