"""The replacement policies, one formula a class, and their registry."""

from cachectl.policies.base import ReplacementPolicy
from cachectl.policies.baselines import GreedyDualSizeFrequency, LeastRecentlyUsed, NoCache, PrefixAwareGreedyDual
from cachectl.policies.foresight import Foresight
from cachectl.policies.lookahead import Lookahead
from protocol.errors import UnknownPolicy

_POLICIES: dict[str, type[ReplacementPolicy]] = {
    policy.name: policy
    for policy in (
        NoCache,
        LeastRecentlyUsed,
        GreedyDualSizeFrequency,
        PrefixAwareGreedyDual,
        Foresight,
    )
}


def policy_names() -> list[str]:
    """The names of all policies, the baseline first."""
    return list(_POLICIES)


def create_policy(name: str, lookahead: Lookahead) -> ReplacementPolicy:
    """Create the policy of this name. Raises UnknownPolicy."""
    if name not in _POLICIES:
        raise UnknownPolicy(f"there is no policy {name!r}; choose one of {', '.join(_POLICIES)}", param="policy")
    return _POLICIES[name](lookahead)
