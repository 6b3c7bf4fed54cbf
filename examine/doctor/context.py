"""What checks know: the settings, what else uses the machine and how much they therefore do, and earlier findings."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from examine.doctor.differences import Tolerances
from examine.doctor.engine_slot import EngineSlot
from examine.doctor.workplace import Workplace
from examine.measuring import Progress
from examine.measuring.engines import EngineMaker, Generation, generate
from examine.measuring.kv_paths import QUESTION_TOKENS, KvPath
from examine.measuring.tier_rounds import SYSTEM_TOKENS, round_segments
from generator.engines.vllm_arguments import has_gpu
from generator.models import ModelStore
from generator.settings import GeneratorSettings
from protocol.generation import Sampling, StepBudget
from protocol.kv import BY_TOKEN, KvMemory, Paging
from protocol.plans import PrefillPlan
from protocol.prompts import Prompt
from protocol.tiers import Tier

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


_FREE_SHARE = 0.8

_DOCUMENTS = 2
"""Of a round of measurements."""
_ANY_BLOCK = 128
"""A multiple of all usual block sizes: without the connector, an engine does not say its own."""


class Reference(NamedTuple):
    """What vLLM does without RAGTree: answers computed without any cache, and times to first token in milliseconds.

    ``ttft_ms`` has the rounds' times with nothing cached (``plain``) and with vLLM's own prefix cache (``floor``).
    """

    answers: list[Generation]
    tolerances: Tolerances
    ttft_ms: dict[str, list[float]]


class TierRounds(NamedTuple):
    """Rounds of a prefix of ``size`` bytes: each case's generation, and bytes per second of a copy and a file read."""

    size: int
    rounds: list[dict[str, Generation]]
    copy_rates: list[float]
    read_rates: list[float]


class Context:
    """Given to each check. ``settings`` are the user's; engines use smaller memory, in the folders of ``place``.

    ``sizes`` defaults to what suits the ``surroundings``. ``kv`` overrides ``KvSettings`` for these engines.
    """

    # Each is set by the check that finds it, which those that read it name in ``needs``.
    model_folder: Path
    prompts: Sequence[Prompt]
    step: StepBudget | None
    reference: Reference
    memory: KvMemory
    measured: TierRounds

    def __init__(
        self,
        settings: GeneratorSettings,
        models: ModelStore,
        place: Workplace,
        surroundings: Surroundings,
        progress: Progress,
        sizes: Sizes | None = None,
    ) -> None:
        self.settings = settings
        self.models = models
        self.place = place
        self.surroundings = surroundings
        self.progress = progress
        self.sizes = sizes or (CROWDED if surroundings.crowded else ALONE)
        self.kv = self._memory()
        examined = reduced(settings, self.max_model_len) if surroundings.crowded else settings
        maker = EngineMaker(examined, models, threads=self.sizes.threads)
        self.engine = EngineSlot(maker, place.disk or place.temporary, self.kv, place.log)

    @property
    def max_model_len(self) -> int:
        """The longest prompt plus answer, in tokens."""
        return int(self.settings.engine_args.get("max_model_len", self.settings.max_model_len))

    @property
    def below(self) -> tuple[Tier, ...]:
        """The tiers below the engine's own memory that have room, the fastest first."""
        pages = {Tier.HOST: self.memory.host_pages, Tier.DISK: self.memory.disk_pages}
        return tuple(tier for tier, count in pages.items() if count)

    def round_path(self, number: int, paging: Paging = BY_TOKEN) -> KvPath:
        """Return the path of a round of measurements, which fills whole blocks and fits the model's context."""
        room = self.max_model_len - SYSTEM_TOKENS - QUESTION_TOKENS - _ANY_BLOCK
        tokens = max(1, min(self.sizes.document_tokens, room // _DOCUMENTS))
        return KvPath(round_segments(number, _DOCUMENTS, tokens, _ANY_BLOCK), paging)

    async def answer(self, plan: PrefillPlan) -> Generation:
        """Return the running engine's greedy answer with its logprobs."""
        return await generate(self.engine.running, plan, Sampling(self.sizes.answer_tokens, logprobs=True))

    async def compute(self, path: KvPath) -> None:
        """Compute a path's KV into the running engine's memory.

        With another question than later plans have: vLLM's own cache would keep the blocks of theirs, too, and answers
        be compared that differ in how much of the prompt was computed.
        """
        await generate(self.engine.running, path.plan("to compute it", None, Tier.GPU), Sampling(1))

    def _memory(self) -> dict[str, object]:
        """The overrides of ``KvSettings``: never more than the user allows, or than is free."""
        kv, place = self.settings.kv, self.place
        return {
            "host_dir": place.host or place.temporary,
            "host_gib": min(kv.host_gib, self.sizes.memory_gib, _free_gib(place.host)),
            "disk_gib": min(kv.disk_gib, self.sizes.memory_gib, _free_gib(place.disk)),
        }


def _free_gib(folder: Path | None) -> float:
    """Return how much of a folder's free space may be used; 0 without a folder."""
    return shutil.disk_usage(folder).free * _FREE_SHARE / (1 << 30) if folder is not None else 0.0
