"""Grants as the plans that the generator executes."""

import msgspec

from cachectl.runtime.composing.reuse_rule import ReuseRule
from cachectl.runtime.composing.tree_rule import TreeRule
from cachectl.runtime.instances.instance_registry import InstanceRegistry
from cachectl.scheduling.plan_translation import spare_keys
from cachectl.tree.grant import Grant
from cachectl.tree.knowledge_tree import KnowledgeTree
from protocol.dependency import DependencyTrees
from protocol.plans import AdmissionRequest, PrefillPlan


class PlanBuilder:
    """Builds ``PrefillPlan`` messages from grants.

    ``reuse`` says how prompts are composed, or why they are not, and ``trees`` why their facts are not in trees.
    """

    def __init__(self, tree: KnowledgeTree, instances: InstanceRegistry, reuse: ReuseRule, trees: TreeRule) -> None:
        self._tree = tree
        self._instances = instances
        self._reuse = reuse
        self._trees = trees

    def build(
        self,
        request: AdmissionRequest,
        grant: Grant,
        *,
        queued_ms: float = 0.0,
        speculative: bool = False,
        unshared: bool = False,
    ) -> PrefillPlan:
        """The plan of a grant, for the prompt of ``request``."""
        share = grant.recompute_share
        plan = PrefillPlan(
            query_id=grant.query_id,
            instance=grant.instance,
            namespace=request.namespace,
            # The engine needs either form of the facts, not both.
            prompt=msgspec.structs.replace(request.prompt, facts=None),
            queued_ms=queued_ms,
            nodes=tuple(grant.documents),
            moves=tuple(grant.moves),
            ends=tuple(grant.ends),
            speculative=speculative,
            spare=spare_keys(self._tree, grant.instance),
            boot=self._instances.boots.get(grant.instance, ""),
            unshared=unshared,
            overtaken=grant.overtaken,
            recompute=self._reuse.recompute(share) if share is not None else None,
            fallback=grant.fallback or self._reuse.fallback(request),
            trees=_kept(request.prompt.trees, grant.dropped_branches, unshared),
            tree_fallback=self._trees.fallback(request),
        )
        return self._behind_first(plan, grant) if grant.first else plan

    def _behind_first(self, plan: PrefillPlan, grant: Grant) -> PrefillPlan:
        """A composed prompt's plan behind that of the prefill in front of it, which makes the room for both."""
        first = PrefillPlan(
            query_id=f"{plan.query_id}~first",
            instance=plan.instance,
            namespace=plan.namespace,
            prompt=plan.prompt.of_prefix(place for place, _ in grant.first),
            nodes=tuple(document for _, document in grant.first),
            moves=plan.moves,
            speculative=plan.speculative,
            spare=plan.spare,
            boot=plan.boot,
        )
        return msgspec.structs.replace(plan, moves=(), first=first)


def _kept(trees: DependencyTrees | None, dropped: tuple[bytes, ...], unshared: bool) -> DependencyTrees | None:
    """The trees, whose branches are kept and found unless the plan is ``unshared``, with what leaves for them."""
    return None if trees is None else msgspec.structs.replace(trees, dropped=dropped, reuse=not unshared)
