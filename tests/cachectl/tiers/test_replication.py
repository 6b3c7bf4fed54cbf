"""Replication copies system prompts and the most used documents to host memory."""

from controller_integrity import check_integrity
from tree_cases import GPU, HOST, ask, found, move, tree_of

from cachectl.tiers.replication import REPLICATED_USES


def test_the_system_prompt_is_pinned_and_copied_to_host():
    tree = tree_of(4, 4)
    ask(tree, "sa", pinned=1)
    # The next plan copies it to host memory, and the GPU keeps it.
    assert ask(tree, "sb", pinned=1).moves == [move("s", GPU, HOST, "one", evict=False)]
    assert ask(tree, "sc", pinned=1).moves == []
    for path in ("DE", "FG", "de"):
        ask(tree, path)
    assert found(tree, "s", "one") == [GPU]
    assert found(tree, "s", "two") == [HOST]
    assert [cache.pinned_tokens for cache in tree.tiers] == [1, 0, 1, 0]


def test_a_much_used_first_document_outlives_its_instance():
    tree = tree_of(4, host=4)
    moves = [ask(tree, "ab").moves for _ in range(REPLICATED_USES)]
    assert [made for made in moves if made] == [[move("a", GPU, HOST, "one", evict=False)]]
    assert moves[-1]
    tree.remove_instance("one")
    check_integrity(tree)
    assert found(tree, "ab", "two") == [HOST]


def test_a_much_used_document_behind_a_system_prompt_outlives_its_instance():
    tree = tree_of(6, host=6)
    for _ in range(REPLICATED_USES):
        ask(tree, "sab", pinned=1)
    tree.remove_instance("one")
    assert found(tree, "sab", "two") == [HOST, HOST]
