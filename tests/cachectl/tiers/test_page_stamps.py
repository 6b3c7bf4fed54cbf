"""Stamps of pages rise across restarts of the controller, though its clock may be set back."""

from engine_models import HOST, RealTiers
from tree_cases import TENANT, begin, key, paged_tree_of

from cachectl.tree.knowledge_tree import KnowledgeTree
from cachectl.tree.restore import restore
from protocol.kv import KvNode, Pages, ResidencyReport

PAGES = 4


def written(tree: KnowledgeTree, tiers: RealTiers, path: str) -> bool:
    """Whether a plan's document can be written to the pages that the tree gives it."""
    [step] = begin(tree, path).documents
    assert step.kept is HOST
    return tiers.write(HOST, KvNode(step.key, TENANT, (path,), 0, step.tokens), step.pages)


def test_free_pages_with_higher_stamps_are_written_again(tmp_path):
    tiers = RealTiers(tmp_path, 1, PAGES)
    # Written under a clock that was ahead, and dropped before the restart.
    for number in range(PAGES):
        pages = Pages((number,), 1_000_000 + number)
        assert tiers.write(HOST, KvNode(key("x").hex(), TENANT, ("x",), 0, 1), pages)
        tiers.drop(HOST, key("x").hex(), pages)
    assert not written(paged_tree_of(0, PAGES), tiers, "a")
    tree = paged_tree_of(0, PAGES)
    restore(tree, [ResidencyReport(HOST, (), highest_stamp=tiers.highest_stamp)])
    assert written(tree, tiers, "a")
    tiers.close()
