"""Builds the generator's factory from the configuration. The engine and the prompt layout share its model."""

from generator.engines.factory import GeneratorFactory
from generator.models import ModelStore
from generator.settings import KvSettings
from services.config import Config


def generator_factory(config: Config) -> GeneratorFactory:
    """Return the factory of the configured engine, its prompt layout and its model folder."""
    settings = config.generator.model_copy(update={"kv": kv_settings(config)})
    return GeneratorFactory(settings, ModelStore(config.cache_dir))


def kv_settings(config: Config) -> KvSettings:
    """Return the KV settings. The disk tier is in the data folder unless configured otherwise."""
    kv = config.generator.kv
    return kv if kv.disk_dir is not None else kv.model_copy(update={"disk_dir": config.data_dir / "kv"})
