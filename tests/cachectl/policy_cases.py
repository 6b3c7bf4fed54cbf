"""Small trees and requests on which a policy's formula can be worked out by hand.

Documents are named by letters, or by longer names. Capital letters have two tokens, all others have one.
"""

from collections.abc import Sequence

from policy_contract import NAMESPACE

from cachectl.nodes.keys import path_keys
from cachectl.nodes.node import PathDocument
from cachectl.policies import create_policy
from cachectl.policies.base import ReplacementPolicy
from cachectl.policies.lookahead import Lookahead
from cachectl.tiers.location import Capacities, KvStorage
from cachectl.tree.grant import Grant
from cachectl.tree.knowledge_tree import KnowledgeTree
from cachectl.tree.load_or_recompute import TreeCosts
from protocol.kv import Move
from protocol.tiers import Tier


def linear(cached: int, new: int) -> float:
    """One second per new token."""
    return float(new)


def quadratic(cached: int, new: int) -> float:
    """Tokens cost more the more tokens stand before them: (cached + new)² − cached²."""
    return float((cached + new) ** 2 - cached**2)


def tree_of(policy: str | ReplacementPolicy, gpu, host=0, cost=linear, instances=("one",)) -> KnowledgeTree:
    """A tree under a policy, or under the served one of this name."""
    ranking = create_policy(policy, Lookahead()) if isinstance(policy, str) else policy
    return KnowledgeTree(ranking, KvStorage(Capacities(gpu, host)), instances, TreeCosts(cost))


def begin(tree: KnowledgeTree, path: Sequence[str], instance: str = "one", tokens: int | None = None) -> Grant:
    """Admit a request for a path. ``tokens`` overrides the length of its documents."""
    documents = [PathDocument(content, tokens or (2 if content.isupper() else 1)) for content in path]
    return tree.grants.admit(str(tree.grants.tick), NAMESPACE, documents, path_keys(NAMESPACE, path), 0, instance, 0.0)


def ask(tree: KnowledgeTree, path: Sequence[str], instance: str = "one", tokens: int | None = None) -> Grant:
    """Serve a request for a path."""
    grant = begin(tree, path, instance, tokens)
    tree.grants.complete(grant, kept=True, unwritten=())
    return grant


def evicted_by(tree: KnowledgeTree, path: str, tier: Tier = Tier.GPU) -> str:
    """The documents that leave a tier when a path is requested, in order."""
    contents = {key.hex(): node.content for key, node in tree.registry.nodes.items()}
    moves: list[Move] = ask(tree, path).moves
    return "".join(contents[move.node] for move in moves if move.source is tier and move.evict)


def priority(tree: KnowledgeTree, path: Sequence[str], tier: Tier = Tier.GPU) -> float:
    """The current priority of a path's last document."""
    node = tree.registry.nodes[path_keys(NAMESPACE, path)[-1]]
    copy = node.copy_in(tree.tiers.cache(tier, "one"))
    return tree.policy.current(copy)


def wait(tree: KnowledgeTree, *paths: Sequence[str]) -> None:
    """Have requests for these paths wait."""
    for path in paths:
        tree.policy.lookahead.enter(f"waits for {path}", path_keys(NAMESPACE, path))
