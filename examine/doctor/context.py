"""What checks know: the settings, their surroundings, and what earlier checks found."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from examine.doctor.differences import Tolerances
from examine.doctor.engine_slot import EngineSlot
from examine.doctor.surroundings import ALONE, CROWDED, Sizes, Surroundings, reduced
from examine.doctor.workplace import Workplace
from examine.measuring.engines import EngineMaker, Generation
from examine.measuring.progress import Progress
from generator.models import ModelStore
from generator.settings import GeneratorSettings
from protocol.generation import StepBudget
from protocol.kv import KvMemory
from protocol.prompts import Prompt
from protocol.tiers import Tier

_FREE_SHARE = 0.8


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

    The fields after ``engine`` are None until the check that finds them has run.
    """

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
        self.model_folder: Path | None = None
        self.prompts: Sequence[Prompt] = ()
        self.step: StepBudget | None = None
        self.reference: Reference | None = None
        self.memory: KvMemory | None = None
        self.measured: TierRounds | None = None

    @property
    def max_model_len(self) -> int:
        """The longest prompt plus answer, in tokens."""
        return int(self.settings.engine_args.get("max_model_len", self.settings.max_model_len))

    @property
    def below(self) -> tuple[Tier, ...]:
        """The tiers below the engine's own memory that have room, the fastest first."""
        memory = self.memory
        assert memory is not None
        return tuple(tier for tier, pages in ((Tier.HOST, memory.host_pages), (Tier.DISK, memory.disk_pages)) if pages)

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
