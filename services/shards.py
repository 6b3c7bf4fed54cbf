"""The data folders of the retriever's shards."""

from retriever.sharding.folders import ShardFolders
from services.config import Config


def shard_folders(config: Config) -> ShardFolders:
    """Return the folders of the configured number of shards."""
    return ShardFolders(config.data_dir / "retriever", config.retriever.shards.count)
