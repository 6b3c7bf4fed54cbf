"""How much memory a model takes, and whether it fits a device's."""

from enum import StrEnum
from typing import NamedTuple

from generator.device import Device
from generator.model_facts import ModelFacts
from generator.settings import GeneratorSettings

_CPU_SHARE = 0.75
"""Of a CPU's memory. The rest is for the stack's other processes and the operating system."""
_ENGINE_BYTES = 1 << 30
"""For activations and the engine itself."""
_EASY_PROMPTS = 4
_VALUE_BYTES = {"float32": 4}


class Fit(StrEnum):
    """How a model fits.

    - YES: with the KV of four prompts of the longest length.
    - TIGHT: with that of one, so there is hardly room to keep documents' KV.
    - NO: without room for one.
    """

    YES = "yes"
    TIGHT = "tight"
    NO = "no"


class MemoryFit(NamedTuple):
    """Memory for models: ``usable`` bytes, values of ``value_bytes`` bytes, prompts of up to ``prompt_tokens``."""

    usable: int
    value_bytes: int
    prompt_tokens: int

    def of(self, model: ModelFacts) -> Fit:
        """Return how a model fits beside its KV."""
        left = self.usable - _ENGINE_BYTES - model.weight_bytes(self.value_bytes)
        prompt = model.prompt_bytes(min(self.prompt_tokens, model.context), self.value_bytes)
        if left < prompt:
            return Fit.NO
        return Fit.YES if left >= _EASY_PROMPTS * prompt else Fit.TIGHT


def memory_fit(device: Device, settings: GeneratorSettings) -> MemoryFit:
    """Return what the configured engine would have of a device. Tensor-parallel ranks have a GPU each."""
    if device.is_gpu:
        gpus = int(settings.engine_args.get("tensor_parallel_size", 1))
        usable = gpus * settings.gpu_memory_utilization * device.memory
    else:
        usable = _CPU_SHARE * device.memory
    emulated = settings.dtype == "auto" and not device.native_bfloat16
    value_bytes = _VALUE_BYTES["float32"] if emulated else _VALUE_BYTES.get(settings.dtype, 2)
    return MemoryFit(int(usable), value_bytes, settings.max_model_len)
