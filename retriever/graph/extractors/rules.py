"""Extraction by rules on top of a small spaCy model: noun phrases, names, and verbs between them.

It runs in a worker process, which reads one group of chunks after another from standard input.
"""

import sys
import threading
from collections.abc import Iterator, Sequence
from itertools import islice

import msgspec
from spacy.tokens import Doc, Span, Token
from threadpoolctl import threadpool_limits

from protocol.errors import Unavailable
from protocol.graph import Triplet
from retriever.graph.extractors.base import ExtractorEnded, Statement
from retriever.graph.extractors.given import statement_of
from retriever.graph.extractors.phrases import VERBS, Phrases, name_of, names_of
from retriever.graph.names import LONGEST_NAME, name_key, tidy
from retriever.machine import lower_priority
from retriever.store.incoming import SourceText
from subprocesses.worker_process import WorkerEnded, WorkerProcess, read_frame, write_frame

RULES_VERSION = 3
"""Raise it when the rules find something else."""

_MOST_TRIPLETS = 16
"""Of one sentence, in the order of the text. A table without full stops must not fill the graph."""

_SUBJECTS = frozenset({"nsubj", "nsubjpass"})
_OBJECTS = frozenset({"attr", "dative", "dobj", "oprd"})


def rules_fingerprint(phrases: Phrases) -> str:
    """Return the versions of rules and model."""
    return f"rules-{RULES_VERSION} {phrases.fingerprint}"


class RulesExtractor:
    """Reads texts that spaCy has parsed.

    An entity is a noun phrase without its articles and pronouns, or a name. A relation is a verb, with its
    preposition, between a subject and an object, or ``is`` between a name and its apposition. A sentence also names
    what its document's title names, because pronouns mostly stand for that.
    """

    def __init__(self, phrases: Phrases) -> None:
        self._phrases = phrases

    def extract(self, sources: Sequence[SourceText]) -> list[list[Statement]]:
        """Return the sentences of each chunk that name an entity."""
        with self._phrases.reading():
            titled = list(dict.fromkeys(source.title for source in sources if source.title))
            titles = dict(zip(titled, self._phrases.names_in_each(titled), strict=True))
            docs = self._phrases.parsed(source.text for source in sources)
            return [
                _statements(doc, titles.get(source.title or "", ())) for source, doc in zip(sources, docs, strict=True)
            ]


def _statements(doc: Doc, title: Sequence[str]) -> list[Statement]:
    # Once for all sentences: for one sentence, spaCy goes through the whole text, too.
    noun_phrases = list(doc.noun_chunks)
    by_root = {phrase.root.i: phrase for phrase in noun_phrases}
    found = []
    for sentence in doc.sents:
        triplets = islice(dict.fromkeys(_triplets(sentence, by_root)), _MOST_TRIPLETS)
        own = [phrase for phrase in noun_phrases if sentence.start <= phrase.start < sentence.end]
        statement = statement_of(sentence.start_char, sentence.end_char, triplets, [*names_of(sentence, own), *title])
        if statement.names:
            found.append(statement)
    return found


def _triplets(sentence: Span, phrases: dict[int, Span]) -> Iterator[Triplet]:
    for token in sentence:
        if token.dep_ == "appos":
            yield from _triplet(phrases.get(token.head.i), "is", phrases.get(token.i))
        if token.pos_ not in VERBS:
            continue
        for subject in _subjects(token):
            for relation, item in _objects(token):
                yield from _triplet(phrases.get(subject.i), relation, phrases.get(item.i))


def _triplet(head: Span | None, relation: str, tail: Span | None) -> Iterator[Triplet]:
    names = name_of(head), name_of(tail)
    if all(names) and name_key(names[0]) != name_key(names[1]) and len(relation) <= LONGEST_NAME:
        yield Triplet(names[0], tidy(relation), names[1])


def _subjects(verb: Token) -> list[Token]:
    """The subjects of a verb, or of the verb it is joined to: "She studied and taught physics"."""
    own = [child for child in verb.children if child.dep_ in _SUBJECTS]
    if not own and verb.dep_ == "conj":
        own = [child for child in verb.head.children if child.dep_ in _SUBJECTS]
    return [joined for subject in own for joined in (subject, *subject.conjuncts)]


def _objects(verb: Token) -> Iterator[tuple[str, Token]]:
    """What a verb relates its subject to, and how: by its lemma or participle, and a preposition."""
    passive = any(child.dep_ == "nsubjpass" for child in verb.children)
    words = verb.lower_ if passive else verb.lemma_
    for child in verb.children:
        if child.dep_ in _OBJECTS:
            for item in (child, *child.conjuncts):
                yield words, item
            # "is a daughter of the king" also relates the subject to the king.
            for preposition, item in _prepositional(child):
                yield f"{words} {child.lower_} {preposition}", item
        elif child.dep_ in ("agent", "prep"):
            for item in _objects_of(child):
                yield f"{words} {child.lower_}", item


def _prepositional(noun: Token) -> Iterator[tuple[str, Token]]:
    for child in noun.children:
        if child.dep_ == "prep":
            for item in _objects_of(child):
                yield child.lower_, item


def _objects_of(preposition: Token) -> Iterator[Token]:
    for child in preposition.children:
        if child.dep_ == "pobj":
            yield from (child, *child.conjuncts)


class RulesProcess:
    """Has a worker process extract by rules, because spaCy holds the interpreter's lock while searches wait for it.

    The first chunks start the worker. If it ends, the next ones start another. One thread at a time extracts.
    """

    def __init__(self, fingerprint: str) -> None:
        """``fingerprint`` is that of the extractor in the worker."""
        self.fingerprint = fingerprint
        self._worker: WorkerProcess | None = None
        self._closed = False
        self._lock = threading.Lock()

    def extract(self, sources: Sequence[SourceText]) -> list[list[Statement]]:
        """Return the statements of each chunk. Raises ExtractorEnded, or Unavailable if this is closed."""
        try:
            return self._running().ask(list(sources), list[list[Statement]])
        except WorkerEnded as error:
            self._end()
            if self._closed:
                raise Unavailable("the graph is closed") from error
            raise ExtractorEnded("the process that reads chunks for the graph has ended") from error

    def close(self) -> None:
        """End the worker, also while it reads."""
        self._closed = True
        self._end()

    def _running(self) -> WorkerProcess:
        with self._lock:
            if self._closed:
                raise Unavailable("the graph is closed")
            if self._worker is None:
                self._worker = WorkerProcess("retriever.graph.extractors.rules")
            return self._worker

    def _end(self) -> None:
        with self._lock:
            worker, self._worker = self._worker, None
        if worker is not None:
            worker.end()


def main() -> None:
    """Read chunks until standard input closes."""
    lower_priority()
    # The embedder computes at the same time, on the other cores.
    threadpool_limits(limits=1)
    extractor = RulesExtractor(Phrases())
    while True:
        try:
            sources = msgspec.msgpack.decode(read_frame(sys.stdin.buffer), type=list[SourceText])
        except EOFError:
            return
        write_frame(sys.stdout.buffer, extractor.extract(sources))


if __name__ == "__main__":
    main()
