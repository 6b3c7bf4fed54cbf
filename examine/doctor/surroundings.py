"""What else uses the machine, and how much a doctor therefore does."""

from typing import NamedTuple

from generator.engines.vllm_arguments import has_gpu
from generator.settings import GeneratorSettings

_USABLE_GPU_SHARE, _LEAST_GPU_SHARE = 0.95, 0.05
_SMALL_BLOCKS, _CPU_BLOCK_TOKENS = 256, 32


class Surroundings(NamedTuple):
    """What else runs on the machine: the address of the user's stack, and the share of the CPUs that is busy."""

    stack_url: str | None = None
    busy_share: float = 0.0

    @property
    def crowded(self) -> bool:
        """Whether to use little, because others need the machine."""
        return self.stack_url is not None or self.busy_share > 0.5


class Sizes(NamedTuple):
    """How much to do. ``memory_gib`` limits host memory and disk, ``threads`` the engine's; None means all cores."""

    prompts: int
    answer_tokens: int
    rounds: int
    document_tokens: int
    memory_gib: float
    threads: int | None


ALONE = Sizes(prompts=20, answer_tokens=8, rounds=3, document_tokens=500, memory_gib=1.0, threads=None)
CROWDED = Sizes(prompts=6, answer_tokens=6, rounds=3, document_tokens=200, memory_gib=0.25, threads=1)


def reduced(settings: GeneratorSettings, max_model_len: int) -> GeneratorSettings:
    """Return the settings with a small KV cache, unless the user has fixed its size.

    On a GPU it is what the stack's own share leaves, and on a CPU what vLLM asks for: room for the longest prompt.
    """
    if has_gpu():
        share = max(_LEAST_GPU_SHARE, _USABLE_GPU_SHARE - settings.gpu_memory_utilization)
        return settings.model_copy(update={"engine_args": {**settings.engine_args, "gpu_memory_utilization": share}})
    block_tokens = int(settings.engine_args.get("block_size", _CPU_BLOCK_TOKENS))
    blocks = max(_SMALL_BLOCKS, 1 + -(-max_model_len // block_tokens))
    small = {"num_gpu_blocks_override": blocks, **settings.engine_args}
    return settings.model_copy(update={"engine_args": small})
