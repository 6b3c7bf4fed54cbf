"""Makes the results of a replay from its record."""

from collections.abc import Sequence
from typing import NamedTuple

from protocol.tiers import Tier
from ragtree_lab.measuring.phases import COMPOSED, Measured
from ragtree_lab.measuring.systems import OURS
from ragtree_lab.replay.record import RAGTREE, Record, Variant
from ragtree_lab.replay.results import ReplayResult, SystemResult, Trial
from ragtree_lab.replay.sustained_rate import rate_at


class Surroundings(NamedTuple):
    """What the record does not tell: the stream's documents, and our memory, in tokens of KV."""

    document_tokens: int
    memory_tokens: dict[Tier, int]
    cache_tokens: int
    ram_tokens: int
    answer_tokens: int

    @property
    def room(self) -> int:
        """The tokens that all our tiers hold together."""
        return sum(self.memory_tokens.values())


def report(record: Record, baselines: Sequence[str], surroundings: Surroundings, *, complete: bool) -> ReplayResult:
    """Compare our system with each baseline, as far as they were measured."""
    better = {name: variant for name in baselines if (variant := record.better(name)) is not None}
    chosen = {**better, OURS: RAGTREE} if RAGTREE in record.at_once else better
    by_rate = {name: _ratios(record, variant) for name, variant in better.items()}
    highest = {
        name: rate_at(max(steps))
        for name, variant in chosen.items()
        if record.is_beaten(variant) and (steps := list(record.sustained(variant)))
    }
    paths = record.paths
    return ReplayResult(
        complete=complete,
        document_tokens=surroundings.document_tokens,
        memory_tokens=surroundings.memory_tokens,
        cache_tokens=surroundings.cache_tokens,
        ram_tokens=surroundings.ram_tokens,
        prompt_tokens=paths.tokens / paths.prompts if paths.prompts else 0.0,
        answer_tokens=surroundings.answer_tokens,
        warm_up_prompts=paths.warmed,
        new_path_share=paths.new / paths.prompts if paths.prompts else 0.0,
        token_hit_rate=_hit_rates(record),
        systems={name: _system(record, variant) for name, variant in chosen.items()},
        trials=[
            Trial(variant.name, variant.steps, record.unloaded[variant], at_once)
            for variant, at_once in record.at_once.items()
            if variant != RAGTREE
        ],
        ttft_ratio_unloaded={name: _unloaded_ratio(record, name) for name in better if RAGTREE in record.unloaded},
        ttft_ratio={name: ratios[max(ratios)] for name, ratios in by_rate.items() if ratios},
        ttft_ratio_by_rate={
            name: {f"{rate_at(step):g}": ratio for step, ratio in ratios.items()} for name, ratios in by_rate.items()
        },
        throughput_ratio={
            name: highest[OURS] / rate for name, rate in highest.items() if name != OURS and OURS in highest
        },
    )


def _system(record: Record, variant: Variant) -> SystemResult:
    loaded = record.loaded.get(variant, {})
    highest = max(record.sustained(variant), default=None)
    return SystemResult(
        steps=variant.steps,
        unloaded=record.unloaded[variant],
        at_once=record.at_once[variant],
        loaded=[measured for _, measured in sorted(loaded.items())],
        sustained_per_s=None if highest is None else rate_at(highest),
    )


def _unloaded_ratio(record: Record, name: str) -> float:
    """How many times lower our unloaded TTFT is than that of the baseline's better setting."""
    theirs = [measured.mean_ttft_ms for variant, measured in record.unloaded.items() if variant.name == name]
    return min(theirs) / record.unloaded[RAGTREE].mean_ttft_ms


def _ratios(record: Record, variant: Variant) -> dict[int, float]:
    """How many times lower our mean TTFT is at each step that both sustain, in rising order."""
    ours = set(record.sustained(RAGTREE)) if RAGTREE in record.unloaded else set()
    return {
        step: record.loaded[variant][step].mean_ttft_ms / record.loaded[RAGTREE][step].mean_ttft_ms
        for step in record.sustained(variant)
        if step in ours
    }


def _hit_rates(record: Record) -> dict[str, float]:
    """The share of our prompt tokens by tier, without load and at all sustained rates."""
    if RAGTREE not in record.unloaded:
        return {}
    measured: list[Measured] = [record.unloaded[RAGTREE]]
    measured += [record.loaded[RAGTREE][step] for step in record.sustained(RAGTREE)]
    total = sum(sum(one.tokens.values()) for one in measured)
    origins = [*map(str, Tier), COMPOSED]
    return {origin: sum(one.tokens[origin] for one in measured) / total for origin in origins}
