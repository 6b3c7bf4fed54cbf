"""Prefix lookup finds the longest cached prefix that an instance can use, and changes nothing."""

from controller_integrity import check_integrity
from tree_cases import GPU, HOST, TENANT, ask, begin, dump, found, key, tree_of

from cachectl.nodes.keys import child_key, path_keys, root_key


def test_a_match_is_the_longest_cached_prefix():
    tree = tree_of(10)
    ask(tree, "abc")
    assert [copy.node.key for copy in tree.lookup.match(TENANT, "abxc", "one")] == path_keys(TENANT, "ab")
    assert found(tree, "abcd") == [GPU] * 3
    assert found(tree, "bc") == found(tree, "ba") == found(tree, "") == []


def test_another_document_order_makes_other_nodes():
    tree = tree_of(10)
    for path in ("ab", "ba"):
        assert [step.source for step in ask(tree, path).documents] == [None, None]
    assert len(tree.registry.nodes) == 4


def test_a_path_may_contain_a_document_twice():
    tree = tree_of(10)
    ask(tree, "aa")
    assert found(tree, "aaa") == [GPU, GPU]
    assert tree.delete("a") == 2
    check_integrity(tree)


def test_a_key_depends_on_the_namespace_and_the_whole_prefix():
    keys = {key(path, namespace) for path in ("b", "ab", "aab") for namespace in ("x", "y")}
    assert len(keys) == 6
    assert path_keys("x", "ab") == [
        child_key(root_key("x"), "a"),
        child_key(child_key(root_key("x"), "a"), "b"),
    ]


def test_an_instance_finds_its_own_gpu_and_the_shared_tiers_only():
    tree = tree_of(2, 2)
    ask(tree, "ab", "one")
    assert found(tree, "ab", "two") == []
    ask(tree, "C", "one")
    assert found(tree, "ab", "one") == found(tree, "ab", "two") == [HOST, HOST]


def test_a_match_names_the_fastest_copy_that_the_instance_reaches():
    tree = tree_of(1, 2)
    for path in "aba":
        ask(tree, path, "one")
    assert found(tree, "a", "one") == [GPU]
    assert found(tree, "a", "two") == [HOST]


def test_a_match_looks_up_each_document_once_in_a_wide_tree():
    class Content(str):
        def __hash__(self):
            lookups.append(str(self))
            return super().__hash__()

        def __eq__(self, other):
            compared.append(other)
            return super().__eq__(other)

    tree = tree_of(10_000)
    for number in range(500):
        # Each node has many children: an only child takes no lookup.
        for above in ("abc", "ab", "a", ""):
            tree.grants.complete(begin(tree, above + chr(0x1000 + number)), kept=True)
    lookups: list[str] = []
    compared: list[str] = []
    path = [*"abc", chr(0x1000)]
    assert len(tree.lookup.match(TENANT, [Content(content) for content in path], "one")) == 4
    assert lookups == path
    # Hashes are compared first, so a document is only ever compared with its own node.
    assert compared == path


def test_a_match_changes_nothing():
    tree = tree_of(2, 2)
    for path in ("ab", "C"):
        ask(tree, path)
    before = dump(tree)
    tree.lookup.match(TENANT, "abC", "one")
    tree.lookup.match("unknown", "a", "one")
    assert dump(tree) == before


def test_a_namespace_never_finds_documents_of_another():
    tree = tree_of(10, 10)
    ask(tree, "ab", namespace="x")
    assert found(tree, "ab", namespace="x") == [GPU, GPU]
    assert found(tree, "ab", namespace="y") == []
    assert [step.source for step in ask(tree, "ab", namespace="y").documents] == [None, None]


def test_a_namespace_is_removed_with_its_last_node():
    tree = tree_of(1)
    ask(tree, "a", namespace="x")
    ask(tree, "a", namespace="y")
    assert list(tree.registry.roots) == ["y"]
    tree.grants.complete(begin(tree, "b", namespace="z"), kept=False)
    assert not tree.registry.roots
