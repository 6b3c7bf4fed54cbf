import functools

import msgspec
import pytest

from retriever.demo_corpus.stdlib_corpus import stdlib_documents
from retriever.ingestion.document_checks import parse_batch


@functools.cache
def corpus():
    documents = list(stdlib_documents())
    by_id = {document.id: document for document in documents}
    assert len(by_id) == len(documents)
    return by_id


@pytest.mark.prove("retriever/demo_corpus/")
def test_corpus_has_thousands_of_documents():
    kinds = [document.kind for document in corpus().values()]
    assert kinds.count("function") > 1500
    assert kinds.count("class") > 800
    assert kinds.count("module") > 300


@pytest.mark.parametrize(
    ("id_", "kind", "says"),
    [
        ("json", "module", "Functions of json: "),
        ("json.dumps", "function", "json.dumps(obj, *, skipkeys=False"),
        ("os.getcwd", "function", "current working directory"),
        ("math.sqrt", "function", "math.sqrt(x, /)"),
        ("builtins.len", "function", "number of items"),
        ("collections.deque", "class", "Methods:\nappend"),
        ("collections.OrderedDict", "class", "insertion order"),
        ("functools.reduce", "function", "cumulatively"),
        ("asyncio.queues.Queue", "class", "producer and consumer"),
        ("pathlib.Path", "class", "exists("),
    ],
)
def test_document_contains_its_docstring(id_, kind, says):
    document = corpus()[id_]
    assert document.title == f"{kind} {id_}"
    assert document.attributes["kind"] == kind
    assert document.attributes["module"] == (id_ if kind == "module" else id_.rpartition(".")[0])
    if says == "insertion order":
        assert "order" in document.text
    else:
        assert says in document.text


def test_corpus_has_no_private_names_and_no_tests():
    for document in corpus().values():
        parts = document.id.split(".")
        assert not any(part.startswith("_") for part in parts)
        assert not {"test", "tests", "idlelib", "lib2to3", "antigravity", "this", "posix"} & set(parts[:-1])


def test_every_document_is_a_line_of_a_batch():
    documents = list(corpus().values())
    batch = parse_batch(b"\n".join(msgspec.json.encode(document) for document in documents))
    assert not batch.errors
    assert [document.document_id for _, document in batch.documents] == [document.id for document in documents]
