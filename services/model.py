"""The generator's factory over one configuration: engine and prompt layout share its model."""

from generator.factory import GeneratorFactory
from generator.models import ModelStore
from services.config import Config


def generator_factory(config: Config) -> GeneratorFactory:
    """The factory of the configured engine, its layout and its model folder."""
    return GeneratorFactory(config.generator, ModelStore(config.cache_dir))
