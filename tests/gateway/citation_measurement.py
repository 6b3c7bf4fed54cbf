"""How well the citations find the passages that hold an answer's evidence, on the answers of a question set.

``PYTHONPATH=.:tests/gateway python tests/gateway/citation_measurement.py`` prints the table of docs/retrieval.md. The
set, dragonball, has sentences of evidence for each answer, and articles that differ in little but names and figures.
Ten passages stand beside each answer: those that share the most and rarest words with the question, and those with
evidence.
"""

import gzip
import json
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from math import log
from pathlib import Path
from typing import NamedTuple

from gateway.query import citations
from gateway.query.citations import Support, supports

DATA = Path(__file__).parents[3] / "shared" / "data" / "dragonball"
PASSAGES = 10
LENGTHS = {"en": 1000, "zh": 400}
UNANSWERED = ("Unable to answer", "无法回答")


class Case(NamedTuple):
    """An answered question, the passages beside it, and which of them hold its evidence."""

    question: str
    answer: str
    passages: list[str]
    gold: set[int]


class Scores(NamedTuple):
    precision: float
    recall: float

    @property
    def f1(self) -> float:
        return 2 * self.precision * self.recall / (self.precision + self.recall)


def read(name: str) -> Iterator[dict]:
    with gzip.open(DATA / name, "rt", encoding="utf-8") as lines:
        yield from map(json.loads, lines)


def squeezed(text: str) -> str:
    return re.sub(r"\W+", "", text.casefold())


def passages_of(text: str, length: int) -> Iterator[str]:
    held = ""
    for sentence in re.split(r"(?<=[.。！？\n])", text):
        if held and len(held) + len(sentence) > length:
            yield held
            held = ""
        held += sentence
    if held.strip():
        yield held


def cases(lang: str, count: int) -> list[Case]:
    """So many questions of a language, drawn at random but alike each time."""
    spoken = {doc["doc_id"]: doc["text"] for doc in read("docs.jsonl.gz")}
    chinese = {name for name, text in spoken.items() if len(re.findall(r"[\u4e00-\u9fff]", text)) > len(text) / 5}
    texts = [
        (name, passage)
        for name, text in spoken.items()
        if (name in chinese) == (lang == "zh")
        for passage in passages_of(text, LENGTHS[lang])
    ]
    words = [set(citations._words(passage)) for _, passage in texts]
    having = Counter(word for one in words for word in one)
    squeezed_texts = [squeezed(passage) for _, passage in texts]
    asked = [question for question in read("questions.jsonl.gz") if question["lang"] == lang]
    random.Random(5).shuffle(asked)
    found: list[Case] = []
    for question in asked:
        sentences = [squeezed(part) for text in question["evidence"] for part in re.split(r"(?<=[.。！？])", text)]
        evidence = [sentence for sentence in sentences if len(sentence) >= 12]
        gold = [
            at
            for at, (name, _) in enumerate(texts)
            if name in question["gold_doc_ids"] and any(part in squeezed_texts[at] for part in evidence)
        ]
        if not 1 <= len(gold) <= 6 or question["answers"][0].startswith(UNANSWERED):
            continue
        wanted = set(citations._words(question["question"]))
        near = [-sum(log(len(texts) / having[word]) for word in wanted & one) for one in words]
        others = [at for at in sorted(range(len(texts)), key=near.__getitem__) if at not in gold]
        shown = sorted([*gold, *others[: PASSAGES - len(gold)]], key=near.__getitem__)
        held = {at for at, number in enumerate(shown) if number in gold}
        found.append(Case(question["question"], question["answers"][0], [texts[at][1] for at in shown], held))
        if len(found) == count:
            break
    return found


def scores(of: Sequence[Case], find: Callable[[str, str, Sequence[str]], Sequence[Support]] = supports) -> Scores:
    """Precision and recall over all passages of all cases."""
    right = marked = wanted = 0
    for case in of:
        found = {support.passage for support in find(case.answer, case.question, case.passages)}
        right, marked, wanted = right + len(found & case.gold), marked + len(found), wanted + len(case.gold)
    return Scores(right / max(1, marked), right / wanted)


def every_passage(_answer: str, _question: str, passages: Sequence[str]) -> list[Support]:
    """The baseline: all that were given."""
    return [Support(passage, 1.0, ()) for passage in range(len(passages))]


if __name__ == "__main__":
    by_language = {lang: cases(lang, 300) for lang in LENGTHS}
    for lang, of in by_language.items():
        print(f"{lang}: {len(of)} questions; all passages: {scores(of, every_passage)}")
    chosen = citations.LEAST_OVERLAP, citations.LEAST_OF_BEST
    for least in (0.3, 0.4, 0.5, 0.6, 0.7):
        for of_best in (0.0, 0.7, 0.8, 0.9):
            citations.LEAST_OVERLAP, citations.LEAST_OF_BEST = least, of_best
            row = {lang: scores(of) for lang, of in by_language.items()}
            shown = "; ".join(f"{lang} {got.precision:.2f} {got.recall:.2f} {got.f1:.2f}" for lang, got in row.items())
            print(f"{least} {of_best}: {shown}{'  <- chosen' if (least, of_best) == chosen else ''}", flush=True)
