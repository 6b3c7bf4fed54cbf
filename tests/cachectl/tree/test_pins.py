"""Pins keep paths in the cache, within half of each tier's capacity."""

import pytest
from controller_integrity import check_integrity
from tree_cases import GPU, HOST, TENANT, ask, begin, dump, found, key, tree_of

from protocol.errors import PinRefused, UnknownNode


def test_a_pinned_path_is_kept_until_it_is_unpinned():
    tree = tree_of(4)
    ask(tree, "ab")
    tree.pin(TENANT, "ab")
    for path in ("C", "D", "E"):
        ask(tree, path)
    assert found(tree, "ab") == [GPU, GPU]
    tree.unpin(TENANT, "ab")
    check_integrity(tree)
    for path in ("C", "D"):
        ask(tree, path)
    assert found(tree, "ab") == []


def test_a_path_pinned_twice_is_unpinned_twice():
    tree = tree_of(4)
    ask(tree, "a")
    for _ in range(2):
        tree.pin(TENANT, "a")
    tree.unpin(TENANT, "a")
    assert tree.registry.nodes[key("a")].pins == 1
    tree.unpin(TENANT, "a")
    with pytest.raises(UnknownNode, match="not pinned"):
        tree.unpin(TENANT, "a")
    check_integrity(tree)
    assert tree.tiers.gpu("one").pinned_tokens == 0


def test_a_prefix_of_a_pinned_path_is_not_itself_pinned():
    tree = tree_of(4)
    ask(tree, "ab")
    tree.pin(TENANT, "ab")
    before = dump(tree)
    with pytest.raises(UnknownNode, match="not pinned"):
        tree.unpin(TENANT, "a")
    assert dump(tree) == before
    check_integrity(tree)


def test_pins_take_at_most_half_of_a_tier():
    tree = tree_of(4, 10)
    ask(tree, "abc")
    tree.pin(TENANT, "ab")
    before = dump(tree)
    with pytest.raises(PinRefused, match="50% of the gpu tier's 4 tokens; 2 are pinned and these are 1 more"):
        tree.pin(TENANT, "abc")
    assert dump(tree) == before
    tree.unpin(TENANT, "ab")
    ask(tree, "d")
    tree.pin(TENANT, "d")
    check_integrity(tree)


def test_the_smallest_tier_that_holds_a_path_limits_its_pin():
    tree = tree_of(4, 2)
    for path in ("A", "B", "C"):
        ask(tree, path)
    assert found(tree, "A") == [HOST]
    with pytest.raises(PinRefused, match="host"):
        tree.pin(TENANT, "A")


def test_a_system_prompt_over_half_a_tier_is_kept_but_not_pinned():
    tree = tree_of(3)
    ask(tree, "S", pinned=1)
    assert found(tree, "S") == [GPU]
    assert tree.registry.nodes[key("S")].pins == 0
    ask(tree, "BC")
    assert found(tree, "S") == []


def test_a_system_prompt_of_several_documents_pins_at_most_half_a_tier():
    # S alone is more than half of 3, so it must not be pinned, neither alone nor with t.
    tree = tree_of(3)
    ask(tree, "St", pinned=2)
    assert tree.tiers.gpu("one").pinned_tokens <= 1.5


@pytest.mark.parametrize("path", ["", "x", "abx", "b"])
def test_only_cached_paths_can_be_pinned(path):
    tree = tree_of(10)
    ask(tree, "ab")
    before = dump(tree)
    for attempt in (tree.pin, tree.unpin):
        with pytest.raises(UnknownNode):
            attempt(TENANT, path)
        with pytest.raises(UnknownNode):
            attempt("unknown", path)
    assert dump(tree) == before


def test_deleting_a_pinned_document_unpins_its_parents():
    tree = tree_of(10)
    ask(tree, "abc")
    tree.pin(TENANT, "abc")
    tree.delete("b")
    check_integrity(tree)
    assert tree.registry.nodes[key("a")].pins == 0
    assert tree.tiers.gpu("one").pinned_tokens == 0


def test_losing_a_pinned_document_unpins_its_parents():
    tree = tree_of(10)
    ask(tree, "ab")
    tree.pin(TENANT, "ab")
    tree.grants.complete(begin(tree, "ab"), kept=True, lost=[(key("ab"), GPU)])
    check_integrity(tree)
    assert tree.registry.nodes[key("a")].pins == 0


def test_losing_the_middle_of_a_pinned_path_unpins_it_once():
    tree = tree_of(10)
    ask(tree, "abc")
    tree.pin(TENANT, "abc")
    tree.pin(TENANT, "a")
    tree.grants.complete(begin(tree, "ab"), kept=True, lost=[(key("ab"), GPU)])
    check_integrity(tree)
    assert tree.registry.nodes[key("a")].pins == 1
    assert tree.tiers.gpu("one").pinned_tokens == 1
