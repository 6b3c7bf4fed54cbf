"""Which documents keep their KV in the auxiliary model."""

import torch

from generator.composing.selection.base import Content
from ragtree_lab.selectors.auxiliary.auxiliary_model import DocumentKv
from ragtree_lab.selectors.auxiliary.document_cache import DocumentCache, ReadDocument

FIRST, SECOND, THIRD = (Content("a", name) for name in ("first", "second", "third"))


def document() -> ReadDocument:
    """A document of 80 bytes."""
    return ReadDocument(DocumentKv([torch.zeros(10, 1, 1)], [torch.zeros(10, 1, 1)], []), [])


def test_the_documents_used_last_are_kept():
    cache = DocumentCache(size=170)
    for content in (FIRST, SECOND):
        cache.add(content, document(), deletions=0)
    assert cache.get(FIRST) is not None
    cache.add(THIRD, document(), deletions=0)
    assert [cache.get(content) is not None for content in (FIRST, SECOND, THIRD)] == [True, False, True]


def test_what_is_larger_than_all_room_is_not_kept():
    cache = DocumentCache(size=79)
    cache.add(FIRST, document(), deletions=0)
    assert cache.get(FIRST) is None
    cache.forget(lambda namespace, path: True)
    cache.add(FIRST, document(), deletions=1)
    assert cache.get(FIRST) is None


def test_deleted_documents_are_forgotten_and_others_are_not():
    cache = DocumentCache(size=160)
    for content in (FIRST, SECOND):
        cache.add(content, document(), deletions=0)
    cache.forget(lambda namespace, path: (namespace, path) == ("a", ("first",)))
    assert cache.get(FIRST) is None
    assert cache.get(SECOND) is not None
    cache.add(THIRD, document(), deletions=1)
    assert cache.get(SECOND) is not None


def test_what_was_read_before_a_deletion_and_arrives_behind_it_is_not_kept():
    cache = DocumentCache(size=160)
    before = cache.deletions
    cache.forget(lambda namespace, path: True)
    cache.add(FIRST, document(), before)
    assert cache.get(FIRST) is None


def test_a_deletion_of_another_document_does_not_matter():
    cache = DocumentCache(size=160)
    before = cache.deletions
    cache.forget(lambda namespace, path: (namespace, path) == ("a", ("second",)))
    cache.add(FIRST, document(), before)
    cache.add(SECOND, document(), before)
    assert cache.get(FIRST) is not None
    assert cache.get(SECOND) is None
