"""The results of a replay."""

import msgspec

from protocol.gate import GateReport
from protocol.tiers import Tier
from ragtree_lab.measuring.baselines import Steps
from ragtree_lab.measuring.phases import Measured


class Trial(msgspec.Struct, frozen=True):
    """A baseline in one setting, warm: ``unloaded``, and many requests all ``at_once``."""

    baseline: str
    steps: Steps
    unloaded: Measured
    at_once: Measured


class SystemResult(msgspec.Struct, frozen=True):
    """Warm results of a system: ``unloaded``, many requests ``at_once``, and ``loaded`` by arrival rate, lowest first.

    ``sustained_per_s`` is the highest sustained rate; None if none of those tried is. ``steps`` is the setting of a
    baseline's steps that had the lower TTFT ``at_once``.
    """

    steps: Steps
    unloaded: Measured
    at_once: Measured
    loaded: list[Measured]
    sustained_per_s: float | None


class ReplayResult(msgspec.Struct, frozen=True):
    """Systems by name, and for each baseline how many times lower our mean TTFT and higher our sustained rate is.

    ``ttft_ratio_unloaded`` is against the baseline's better setting; ``ttft_ratio`` at the highest rate that both
    sustain, ``ttft_ratio_by_rate`` at each rate that both sustain. A ratio is missing where nothing was measured, or
    no rate was too high for one of the two; ``complete`` is false if the run was ended before all was measured.

    ``new_path_share`` is the share of the measured prompts whose sequence of documents was in no earlier prompt,
    ``token_hit_rate`` the share of our measured prompt tokens that came from each tier, over all rates that we sustain.
    ``document_tokens`` counts the KV of all the stream's documents, equal prefixes once. ``memory_tokens`` is our room
    by tier, ``ram_tokens`` the size of an equal cache. ``warm_up_prompts`` came before everything that was measured.
    ``gate`` is the verdict on composing if our system composes only where that has passed; otherwise None.
    """

    complete: bool
    document_tokens: int
    memory_tokens: dict[Tier, int]
    cache_tokens: int
    ram_tokens: int
    prompt_tokens: float
    answer_tokens: int
    warm_up_prompts: int
    new_path_share: float
    token_hit_rate: dict[str, float]
    systems: dict[str, SystemResult]
    trials: list[Trial]
    ttft_ratio_unloaded: dict[str, float]
    ttft_ratio: dict[str, float]
    ttft_ratio_by_rate: dict[str, dict[str, float]]
    throughput_ratio: dict[str, float]
    gate: GateReport | None = None
