"""Replacement policies for simulations only, beside those that serving offers."""

from cachectl.policies import create_policy, policy_names
from cachectl.policies.base import ReplacementPolicy
from cachectl.policies.lookahead import Lookahead
from ragtree_lab.simulation.policies.belady import Belady
from ragtree_lab.simulation.policies.hybrid import FrequencyRecency
from ragtree_lab.simulation.policies.lacr import LookaheadAware, NormalisedLookaheadAware
from ragtree_lab.simulation.policies.lfu import LeastFrequentlyUsed

_SIMULATED: dict[str, type[ReplacementPolicy]] = {
    policy.name: policy for policy in (LeastFrequentlyUsed, FrequencyRecency, LookaheadAware, NormalisedLookaheadAware)
}


def simulated_policies() -> list[str]:
    """The names of all policies that a simulation can run, the clairvoyant one last."""
    return [*policy_names(), *_SIMULATED, Belady.name]


def create_simulated_policy(name: str, lookahead: Lookahead) -> ReplacementPolicy:
    """Create the policy of this name. BELADY is not among them: it needs the trace. Raises UnknownPolicy."""
    return _SIMULATED[name](lookahead) if name in _SIMULATED else create_policy(name, lookahead)
