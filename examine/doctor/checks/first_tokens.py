"""Times to first token by where the prompt's KV is, and bandwidths of loads."""

from collections.abc import Mapping, Sequence
from statistics import median

from examine.doctor.checks.engines import CachingEngine
from examine.doctor.context import Context, TierRounds
from examine.doctor.outcome import Outcome
from examine.measuring.tier_rounds import caching_round, copy_rate, read_rate
from protocol.tiers import Tier


class FirstTokens:
    """Measures them in a few rounds, like `ragtree bench tiers`, but with one engine after the other."""

    name = "time to first token"
    needs = (CachingEngine.name,)

    async def run(self, context: Context) -> Outcome:
        """Warns if a tier is slower than computing the prompt."""
        memory, tiers = context.memory, context.below
        pages = context.round_path(0, memory.paging).page_count
        for tier, room in ((Tier.HOST, memory.host_pages), (Tier.DISK, memory.disk_pages)):
            if tier in tiers and pages > room:
                return Outcome.skipped(f"{tier} has no room for {pages} pages: raise generator.kv.{tier}_gib")
        measured = await _measured(context, tiers)
        times: dict[str, float] = {case: median(values) for case, values in context.reference.ttft_ms.items()}
        times |= {tier: median(took[tier].ttft_ms for took in measured.rounds) for tier in (Tier.GPU, *tiers)}
        return judged(times, tiers)


def judged(times: Mapping[str, float], tiers: Sequence[Tier]) -> Outcome:
    """Judge milliseconds by case: computed (``plain``), in vLLM's own cache (``floor``), and in each tier."""
    floor, plain = times["floor"], times["plain"]
    shown = [f"{tier} {times[tier]:.0f} ms ({times[tier] / floor:.2f} x)" for tier in (Tier.GPU, *tiers)]
    figure = f"computed {plain:.0f} ms, floor {floor:.0f} ms, {', '.join(shown)}"
    slow = [tier for tier in tiers if times[tier] >= plain]
    if slow:
        why = (
            f"KV from {slow[0]} comes later than computed KV: use faster memory, or set generator.kv.{slow[0]}_gib to 0"
        )
        return Outcome.warning(why, figure)
    return Outcome.passed(figure)


async def _measured(context: Context, tiers: tuple[Tier, ...]) -> TierRounds:
    memory, count = context.memory, context.sizes.rounds
    size = context.round_path(0, memory.paging).page_count * memory.page_bytes
    measured = context.measured = TierRounds(size, [], [], [])
    file = context.engine.folder / "read"
    for number in range(-1, count):
        context.progress(FirstTokens.name, number + 1, count + 1)
        took = await caching_round(context.engine.running, context.round_path(number, memory.paging), tiers)
        rates = copy_rate(size), read_rate(file, size)
        # The first round warms up.
        if number >= 0:
            measured.rounds.append(took)
            measured.copy_rates.append(rates[0])
            measured.read_rates.append(rates[1])
    file.unlink()
    context.progress(FirstTokens.name, count + 1, count + 1)
    return measured


_SLOW = 0.2
_LARGE = 8 << 20
"""Bytes from which a load takes longer than its beginning and its end."""


class Bandwidths:
    """Compares loads from each tier with a plain memory copy, or a plain file read, of as many bytes.

    Shows what a request waits for a load besides, until the engine computes it.
    """

    name = "bandwidth"
    needs = (FirstTokens.name,)

    async def run(self, context: Context) -> Outcome:
        """Warns if a tier is far slower."""
        measured = context.measured
        against = {Tier.HOST: ("a memory copy", measured.copy_rates), Tier.DISK: ("a file read", measured.read_rates)}
        shown, slow = [], []
        for tier in context.below:
            rates = [measured.size / took[tier].prefill.kv_load_ms * 1000 for took in measured.rounds]
            plain, plain_rates = against[tier]
            share = median(ours / theirs for ours, theirs in zip(rates, plain_rates, strict=True))
            waits_ms = [
                max(0.0, 1000 * read.seconds - took[tier].prefill.kv_load_ms)
                for took in measured.rounds
                for read in took[tier].prefill.reads
            ]
            constant = f" and {median(waits_ms):.1f} ms a load" if waits_ms else ""
            shown.append(f"{tier} {median(rates) / 1e9:.1f} GB/s ({share:.2f} of {plain}){constant}")
            if share < _SLOW and measured.size >= _LARGE:
                slow.append(f"loads from {tier} reach only {share:.0%} of {plain}")
        if not shown:
            return Outcome.skipped("there is no tier below the engine's own memory")
        figure = ", ".join(shown)
        if slow:
            return Outcome.warning(f"{slow[0]}: its two threads need idle cores", figure)
        return Outcome.passed(figure)
