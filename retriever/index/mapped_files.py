"""The folders of indexes that are mapped into memory, published whole or not at all."""

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import msgspec
from blake3 import blake3

from retriever.index.base import Trained
from retriever.publishing import sync

_FORMAT = "ragtree-mapped-1"
_HEADER = "header.json"


class _Header(msgspec.Struct, frozen=True):
    format: str
    fingerprint: str
    trained: Trained
    checksums: dict[str, str]


class MappedFiles:
    """One folder for each collection's index, numbered anew with every index that takes the place of another.

    Files never change: a folder is written under another name, synced and renamed. An index that is still mapped keeps
    its files when they are removed.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def publish(self, collection: int, fingerprint: str, write: Callable[[Path], Trained]) -> tuple[Path, Trained]:
        """Publish the files that ``write`` leaves in the folder it is given, in place of older ones. Raises OSError."""
        self._folder.mkdir(parents=True, exist_ok=True)
        older = self._published(collection)
        folder = Path(tempfile.mkdtemp(dir=self._folder, suffix=".tmp"))
        try:
            trained = write(folder)
            checksums = {path.name: _checksum(path) for path in folder.iterdir()}
            header = _Header(_FORMAT, fingerprint, trained, checksums)
            (folder / _HEADER).write_bytes(msgspec.json.encode(header))
            for path in [*folder.iterdir(), folder]:
                sync(path)
            published = self._folder / f"{collection}.{_number(older[-1]) + 1 if older else 1}.mapped"
            folder.rename(published)
            sync(self._folder)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        for path in older:
            shutil.rmtree(path, ignore_errors=True)
        return published, trained

    def find(self, collection: int, fingerprint: str) -> tuple[Path, Trained] | None:
        """The newest folder, or None where there is none, or none of this fingerprint, or a file is damaged."""
        for folder in self._published(collection)[::-1]:
            try:
                header = msgspec.json.decode((folder / _HEADER).read_bytes(), type=_Header)
                whole = all(_checksum(folder / name) == checksum for name, checksum in header.checksums.items())
            except (OSError, msgspec.DecodeError, UnicodeDecodeError):
                continue
            if whole and (header.format, header.fingerprint) == (_FORMAT, fingerprint):
                return folder, header.trained
        return None

    def discard(self, collection: int) -> None:
        """Remove a collection's folders."""
        for folder in self._published(collection):
            shutil.rmtree(folder, ignore_errors=True)

    def sweep(self) -> None:
        """Remove what a crash in the middle of publishing left behind."""
        for leftover in self._folder.glob("*.tmp"):
            if leftover.is_dir():
                shutil.rmtree(leftover, ignore_errors=True)

    def _published(self, collection: int) -> list[Path]:
        """A collection's folders, the newest last; a crash may leave an older one beside it."""
        return sorted(self._folder.glob(f"{collection}.*.mapped"), key=_number)


def _number(folder: Path) -> int:
    return int(folder.name.split(".")[1])


def _checksum(path: Path) -> str:
    return blake3(max_threads=blake3.AUTO).update_mmap(path).hexdigest()
