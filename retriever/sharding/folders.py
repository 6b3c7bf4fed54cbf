"""The folders of the shards, and the number of them that they were filled with."""

from pathlib import Path

import msgspec

from protocol.errors import ConfigError
from retriever.publishing import publish, sync


class _Record(msgspec.Struct, frozen=True):
    shards: int


class ShardFolders:
    """Below ``root`` a folder for each of ``count`` shards; a single one has ``root`` itself.

    Which document is where depends on ``count``, so it is noted in ``shards.json`` before anything else is written. A
    folder without that note has one shard, or none.
    """

    def __init__(self, root: Path, count: int) -> None:
        self._root = root
        self._count = count
        self._note = root / "shards.json"

    def of(self, shard: int) -> Path:
        """The folder of a shard, from 0."""
        return self._root if self._count == 1 else self._root / f"shard-{shard}"

    def claim(self) -> None:
        """Fix the number of shards. Raises ConfigError, and writes nothing, where it is another one already."""
        before = self._filled_with()
        if before is not None and before != self._count:
            raise ConfigError(
                f"{self._root} was filled with retriever.shards.count {before}, and {self._count} would not find its "
                "documents: set that back, or take another data_dir",
                param="retriever.shards.count",
            )
        if before is None and self._count > 1:
            publish(self._note, msgspec.json.encode(_Record(self._count)))
            sync(self._root)

    def _filled_with(self) -> int | None:
        try:
            return msgspec.json.decode(self._note.read_bytes(), type=_Record).shards
        except FileNotFoundError:
            return 1 if (self._root / "store.sqlite3").exists() else None
        except msgspec.DecodeError as error:
            raise ConfigError(f"{self._note} does not say how many shards there are: {error}") from error
