"""The data folders of the shards, and the recorded number of shards."""

from pathlib import Path

import msgspec

from protocol.atomic_files import fsync, write_atomically
from protocol.errors import ConfigError


class _Record(msgspec.Struct, frozen=True):
    shards: int


class ShardFolders:
    """One folder below ``root`` for each of ``count`` shards. A single shard uses ``root`` itself.

    ``count`` determines which shard has a document, so ``shards.json`` records it before anything else is written. A
    folder without that file has one shard or none.
    """

    def __init__(self, root: Path, count: int) -> None:
        self._root = root
        self._count = count
        self._record_file = root / "shards.json"

    def of(self, shard: int) -> Path:
        """Return the folder of a shard, numbered from 0."""
        return self._root if self._count == 1 else self._root / f"shard-{shard}"

    def record_count(self) -> None:
        """Record the number of shards. Raises ConfigError, without a change, if another number is recorded."""
        recorded = self._recorded_count()
        if recorded is not None and recorded != self._count:
            raise ConfigError(
                f"{self._root} was created with retriever.shards.count {recorded}; {self._count} would not find its "
                "documents: restore that setting, or use another data_dir",
                param="retriever.shards.count",
            )
        if recorded is None and self._count > 1:
            write_atomically(self._record_file, msgspec.json.encode(_Record(self._count)))
            fsync(self._root)

    def _recorded_count(self) -> int | None:
        try:
            return msgspec.json.decode(self._record_file.read_bytes(), type=_Record).shards
        except FileNotFoundError:
            return 1 if (self._root / "store.sqlite3").exists() else None
        except msgspec.DecodeError as error:
            raise ConfigError(f"{self._record_file} does not contain the number of shards: {error}") from error
