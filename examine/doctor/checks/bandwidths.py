"""Bandwidths of loads."""

from statistics import median

from examine.doctor.checks.first_tokens import FirstTokens
from examine.doctor.context import Context
from examine.doctor.outcome import Outcome
from protocol.tiers import Tier

_SLOW = 0.2
_LARGE = 8 << 20
"""Bytes from which a load takes longer than its beginning and its end."""


class Bandwidths:
    """Compares loads from each tier with a plain memory copy, or a plain file read, of as many bytes."""

    name = "bandwidth"
    needs = (FirstTokens.name,)

    async def run(self, context: Context) -> Outcome:
        """Warns if a tier is far slower."""
        measured = context.measured
        assert measured is not None
        against = {Tier.HOST: ("a memory copy", measured.copy_rates), Tier.DISK: ("a file read", measured.read_rates)}
        shown, slow = [], []
        for tier in context.below:
            rates = [measured.size / took[tier].prefill.kv_load_ms * 1000 for took in measured.rounds]
            plain, plain_rates = against[tier]
            share = median(ours / theirs for ours, theirs in zip(rates, plain_rates, strict=True))
            shown.append(f"{tier} {median(rates) / 1e9:.1f} GB/s ({share:.2f} of {plain})")
            if share < _SLOW and measured.size >= _LARGE:
                slow.append(f"loads from {tier} reach only {share:.0%} of {plain}")
        if not shown:
            return Outcome.skipped("there is no tier below the engine's own memory")
        figure = ", ".join(shown)
        if slow:
            return Outcome.warning(f"{slow[0]}: its two threads need idle cores", figure)
        return Outcome.passed(figure)
