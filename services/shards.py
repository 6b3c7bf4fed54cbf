"""The retriever's shards as the configuration asks for them."""

from retriever.sharding.shard_folders import ShardFolders
from services.config import Config


def shard_folders(config: Config) -> ShardFolders:
    """Where the shards keep their files."""
    return ShardFolders(config.data_dir / "retriever", config.retriever.shards.count)
