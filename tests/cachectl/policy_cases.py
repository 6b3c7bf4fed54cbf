"""Small trees and requests on which a policy's formula can be worked out on paper.

All documents have one token, except for capital letters, which have two.
"""

from policy_contract import NAMESPACE

from benchmarks.simulation.policies import create_simulated_policy
from cachectl.policies.lookahead import Lookahead
from cachectl.tree.grant import Grant
from cachectl.tree.keys import path_keys
from cachectl.tree.knowledge_tree import KnowledgeTree
from cachectl.tree.node import PathDocument
from cachectl.tree.tier_manager import Capacities
from protocol.kv import Move
from protocol.tiers import Tier


def linear(cached: int, new: int) -> float:
    """One second a token, whatever stands in front."""
    return float(new)


def quadratic(cached: int, new: int) -> float:
    """A token costs the more the more stands in front of it: (cached + new)² − cached²."""
    return float((cached + new) ** 2 - cached**2)


def tree_of(name, gpu, host=0, cost=linear, instances=("one",)) -> KnowledgeTree:
    return KnowledgeTree(create_simulated_policy(name, Lookahead()), Capacities(gpu, host), instances, cost)


def ask(tree: KnowledgeTree, path: str, instance: str = "one") -> Grant:
    documents = [PathDocument(content, 2 if content.isupper() else 1) for content in path]
    grant = tree.grants.admit(path, NAMESPACE, documents, path_keys(NAMESPACE, path), 0, instance, 0.0)
    tree.grants.complete(grant, kept=True)
    return grant


def evicted_by(tree: KnowledgeTree, path: str, tier: Tier = Tier.GPU) -> str:
    """The documents that leave a tier when a path is asked for, in the order in which they go."""
    contents = {key.hex(): node.content for key, node in tree.registry.nodes.items()}
    moves: list[Move] = ask(tree, path).moves
    return "".join(contents[move.node] for move in moves if move.source is tier and move.evict)


def priority(tree: KnowledgeTree, path: str, tier: Tier = Tier.GPU) -> float:
    node = tree.registry.nodes[path_keys(NAMESPACE, path)[-1]]
    copy = node.copies[tree.tiers.cache(tier, "one")]
    return tree.policy.current(copy)


def wait(tree: KnowledgeTree, *paths: str) -> None:
    for path in paths:
        tree.policy.lookahead.enter(f"waits for {path}", path_keys(NAMESPACE, path))
