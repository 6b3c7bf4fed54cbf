"""The results of attention over facts."""

import msgspec

from ragtree_lab.graph.attention.quality import QualityRow


class AttentionRow(msgspec.Struct, frozen=True):
    """Prompts of one set with about equally many tokens of facts.

    ``context_tokens`` are those of all paths in full, and ``tree_tokens`` those that their trees have, as means.
    ``redundant_share`` is the share of attention over all paths, in pairs of tokens, that the trees do without.
    ``hit_share`` is the share of the trees' tokens whose KV earlier prompts had. ``ttft_ms`` are means.
    """

    set: str
    prompts: int
    context_tokens: float
    tree_tokens: float
    redundant_share: float
    hit_share: float
    ttft_ms: dict[str, float]


class TriedRate(msgspec.Struct, frozen=True):
    """Prompts that arrive at ``rate`` a second.

    ``in_time`` is the share of them whose first token comes within the bound. ``drain_s`` are the seconds from the last
    arrival until all have their first token.
    """

    rate: float
    in_time: float
    drain_s: float
    sustained: bool


class Slo(msgspec.Struct, frozen=True):
    """What throughput at the SLO rests on.

    Prompts are of one ``set``, with about so many ``tokens`` of facts. ``ttft_ms`` is the SLO, the time to first token
    of the baseline's idle system, and ``ttft_ms_bound`` the most that a prompt may take under load. ``prompts`` arrive
    at each rate. ``rates`` are those that were tried, by way, in their order.
    """

    set: str
    tokens: int
    prompts: int
    ttft_ms: float
    ttft_ms_bound: float
    rates: dict[str, list[TriedRate]]


class AttentionResult(msgspec.Struct, frozen=True):
    """Figures on attention over facts.

    ``ttft_ratio`` has the ratios of mean times to first token, over all prompts: of each baseline over dependency
    attention with its cache, and of ``self`` over dependency attention without (``self_over_dependency``).
    ``throughput`` is in prompts a second, with several at once. ``throughput_at_slo`` is the highest rate of arrivals
    that a way sustains, in prompts a second (see ``slo``). It lacks a way that sustains no rate. The ratios of both are
    ours over each baseline's. If there were too few prompts for ``slo``, ``no_slo`` says so. ``quality`` compares
    answers with those of self-attention over the same facts.
    """

    attention: list[AttentionRow]
    ttft_ratio: dict[str, float]
    throughput: dict[str, float]
    throughput_ratio: dict[str, float]
    throughput_at_slo: dict[str, float]
    throughput_at_slo_ratio: dict[str, float]
    slo: Slo | None
    no_slo: str
    quality: list[QualityRow]
