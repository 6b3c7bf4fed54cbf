"""The generator's factory over one configuration: engine and prompt layout share its model."""

from generator.engines.factory import GeneratorFactory
from generator.models import ModelStore
from generator.settings import KvSettings
from services.config import Config


def generator_factory(config: Config) -> GeneratorFactory:
    """The factory of the configured engine, its layout and its model folder."""
    settings = config.generator.model_copy(update={"kv": kv_settings(config)})
    return GeneratorFactory(settings, ModelStore(config.cache_dir))


def kv_settings(config: Config) -> KvSettings:
    """Where KV is kept, with the folder of its own that it has in the data folder unless another was chosen."""
    kv = config.generator.kv
    return kv if kv.disk_dir is not None else kv.model_copy(update={"disk_dir": config.data_dir / "kv"})
