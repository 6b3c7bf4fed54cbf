"""Names of the contents in the tree."""

from gateway.stores.recent import DocumentName, RecentDocuments
from protocol.cache import TreeNode, TreeView
from protocol.retrieval import Chunk


def chunk(content: str, document: str) -> Chunk:
    return Chunk(f"{document}#0", document, f"{document}.txt", 0, "text", content)


def node(content: str, *children: TreeNode) -> TreeNode:
    return TreeNode(content, content, 1, ("gpu",), 1.0, 0, False, False, children, 0)


def named(document: str) -> DocumentName:
    return DocumentName(document, f"{document}.txt", 0)


def test_found_nodes_of_the_view_have_names():
    recent = RecentDocuments()
    recent.found("acme", [chunk("a", "first"), chunk("b", "second"), chunk("c", "elsewhere")])
    view = TreeView({"acme": (node("system", node("a", node("b"))),)}, 3, ())
    assert recent.names_in(view) == {"acme": {"a": named("first"), "b": named("second")}}


def test_names_are_separate_by_tenant():
    recent = RecentDocuments()
    recent.found("acme", [chunk("a", "secret")])
    assert recent.names_in(TreeView({"other": (node("a"),)}, 1, ())) == {"other": {}}


def test_equal_texts_have_the_latest_name():
    recent = RecentDocuments()
    recent.found("acme", [chunk("a", "old"), chunk("a", "new")])
    assert recent.names_in(TreeView({"acme": (node("a"),)}, 1, ())) == {"acme": {"a": named("new")}}


def test_oldest_names_are_dropped_first():
    recent = RecentDocuments(remembered=2)
    recent.found("acme", [chunk("a", "one"), chunk("b", "two")])
    recent.found("acme", [chunk("a", "one"), chunk("c", "three")])
    view = TreeView({"acme": (node("a"), node("b"), node("c"))}, 3, ())
    assert sorted(recent.names_in(view)["acme"]) == ["a", "c"]


async def test_tree_reply_has_names(served):
    found = served.app.state.gateway.recent_documents
    tree = (await served.client.get("/v1/admin/cache/tree")).json()
    ((namespace, names),) = tree["documents"].items()
    assert names == {}
    found.found(namespace, [chunk("hash0", "d0")])
    tree = (await served.client.get("/v1/admin/cache/tree")).json()
    assert tree["documents"][namespace]["hash0"] == {"document_id": "d0", "filename": "d0.txt", "index": 0}


async def test_queries_record_names(served):
    await served.client.post("/query", json={"query": "x", "top_k": 2})
    gateway = served.app.state.gateway
    namespace = served.stack.controller.admitted[0].namespace
    view = TreeView({namespace: (node("hash0"), node("hash1"), node("hash2"))}, 3, ())
    assert sorted(gateway.recent_documents.names_in(view)[namespace]) == ["hash0", "hash1"]
