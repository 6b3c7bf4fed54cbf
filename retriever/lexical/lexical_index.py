"""The lexical index of one collection."""

import errno
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from tantivy import Document, Index, Occur, Query, SchemaBuilder, Searcher

from retriever.embedding.base import Vector
from retriever.lexical.words import analyzer, spaced
from retriever.store.chunks import Ids

_ID, _TEXT = "id", "text"
_ANALYZER = "words"
_HEAP_BYTES = 32 * 1024**2
"""Memory of a writer, while it writes."""

_MOST_WORDS = 64
"""Words of a query that are searched: the rarest. The others of a long query cost time and say little."""

_LISTED = 2048
"""Up to this number, allowed ids are part of the query. With more, reading hits until enough are allowed is faster."""

_DEEPER = 4
"""How many times more hits are read if too few of them are allowed."""

_SYSTEM_ERROR = re.compile(r"os error (\d+)")


class LexicalHits(NamedTuple):
    """The best chunks for a query: ids and BM25 scores, by descending score, then by id."""

    ids: Ids
    scores: Vector


class LexicalIndex:
    """Texts of chunks by id, searched by their words, in its own folder.

    One thread changes an index while any number of threads search it. A change is on disk when its call returns; after
    a crash, the index has all of it or nothing. An index proposes ids. The store decides which of them are live.
    """

    def __init__(self, folder: Path) -> None:
        """Open the index in ``folder``, or create it. Raises ValueError if it cannot be read, and OSError."""
        folder.mkdir(parents=True, exist_ok=True)
        builder = SchemaBuilder()
        builder.add_integer_field(_ID, indexed=True, fast=True)
        builder.add_text_field(_TEXT, tokenizer_name=_ANALYZER, index_option="freq")
        self._schema = builder.build()
        self._index = Index(self._schema, path=str(folder))
        self._analyzer = analyzer()
        self._index.register_tokenizer(_ANALYZER, self._analyzer)
        # Changes become visible when their call reloads the index, not when a thread notices them.
        self._index.config_reader("manual")
        self._index.reload()

    def ids(self) -> Ids:
        """Return the ids of all chunks, ascending."""
        searcher = self._index.searcher()
        return np.sort(_hits(searcher, Query.all_query(), searcher.num_docs).ids)

    def search(self, text: str, k: int, allowed: Ids | None = None) -> LexicalHits:
        """Return the ``k`` best chunks that have a word of ``text``, among ``allowed`` (ascending ids)."""
        searcher = self._index.searcher()
        query = self._query(searcher, text)
        if query is None or not searcher.num_docs:
            return LexicalHits(np.zeros(0, np.int64), np.zeros(0, np.float32))
        if allowed is not None and len(allowed) <= _LISTED:
            query, allowed = self._restricted(query, allowed), None
        deep = k
        while True:
            hits = _hits(searcher, query, deep)
            exhausted = len(hits.ids) < deep
            if allowed is not None:
                within = np.isin(hits.ids, allowed)
                hits = LexicalHits(hits.ids[within], hits.scores[within])
            if exhausted or len(hits.ids) >= k:
                return LexicalHits(hits.ids[:k], hits.scores[:k])
            deep *= _DEEPER

    def change(self, added: Iterable[tuple[int, str]] = (), removed: Sequence[int] = ()) -> None:
        """Add chunks, as (id, text), and remove others; unknown ids are ignored. Raises OSError."""
        try:
            writer = self._index.writer(_HEAP_BYTES, 1)
            try:
                for id_ in removed:
                    writer.delete_documents_by_term(_ID, id_)
                for id_, text in added:
                    writer.add_document(Document(**{_ID: id_, _TEXT: spaced(text)}))
                writer.commit()
            finally:
                # Also ends the writer's threads. Uncommitted changes are dropped.
                writer.wait_merging_threads()
                self._index.reload()
        except ValueError as error:
            # tantivy has one error for everything, and the system's number only in its text.
            number = _SYSTEM_ERROR.search(str(error))
            raise OSError(int(number[1]) if number else errno.EIO, f"lexical index not written: {error}") from error

    def _query(self, searcher: Searcher, text: str) -> Query | None:
        words = set(self._analyzer.analyze(spaced(text)))
        counts = {word: count for word in words if (count := searcher.doc_freq(_TEXT, word))}
        rarest = sorted(counts, key=lambda word: (counts[word], word))[:_MOST_WORDS]
        terms = [(Occur.Should, Query.term_query(self._schema, _TEXT, word)) for word in rarest]
        return Query.boolean_query(terms) if terms else None

    def _restricted(self, query: Query, allowed: Ids) -> Query:
        listed = Query.const_score_query(Query.term_set_query(self._schema, _ID, allowed.tolist()), 0.0)
        return Query.boolean_query([(Occur.Must, query), (Occur.Must, listed)])


def _hits(searcher: Searcher, query: Query, count: int) -> LexicalHits:
    found = searcher.search(query, max(1, count), count=False).hits
    ids = np.array(searcher.fast_field_values(_ID, [address for _, address in found]), np.int64)
    scores = np.array([score for score, _ in found], np.float32)
    order = np.lexsort((ids, -scores))
    return LexicalHits(ids[order], scores[order])
