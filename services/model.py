"""Builds the generator's factory from the configuration. The engine and the prompt layout share its model."""

from pathlib import Path

from generator.engines.factory import GeneratorFactory
from generator.models import ModelStore
from generator.settings import KvSettings
from services.config import Config

LOOPBACK = "127.0.0.1"

NODE = "{node}"
"""Stands for the node's address in the folder of KV, so that machines with a common file system have one each."""


def generator_factory(config: Config, node_address: str = LOOPBACK) -> GeneratorFactory:
    """Return the factory of the configured engine, its prompt layout and its model folder.

    The engine serves its KV to other machines at ``node_address``, unless another one is configured.
    """
    settings = config.generator.model_copy(update={"kv": kv_settings(config, node_address)})
    return GeneratorFactory(settings, ModelStore(config.cache_dir))


def kv_settings(config: Config, node_address: str = LOOPBACK) -> KvSettings:
    """Return the KV settings of a node. The disk tier is in the data folder unless configured otherwise."""
    kv = config.generator.kv
    folder = Path(str(kv.disk_dir or config.data_dir / "kv").replace(NODE, node_address))
    peers = kv.peers if kv.peers.host else kv.peers.model_copy(update={"host": node_address})
    return kv.model_copy(update={"disk_dir": folder, "peers": peers})
