"""Rows of results: how good the answers of one way to ask are, and how they differ from the baseline's."""

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

import msgspec

from examine.evaluation.scores import exact_match, f1, holds_answer
from examine.measuring.statistics import bootstrap_interval
from ragtree_lab.prompts.questions import AskedQuestion
from ragtree_lab.prompts.refusals import refuses
from ragtree_lab.prompts.repetition import LOOPS_FROM, repeated_share
from ragtree_lab.prompts.ways import BASELINE, Way

ALL = "all"
"""The name of the rows over the questions of all sets."""


class Given(NamedTuple):
    """An answer: its text, its tokens, and whether it was cut at the limit of tokens."""

    text: str
    tokens: int
    cut: bool


class Difference(msgspec.Struct, frozen=True):
    """Mean difference from the baseline, question by question, and its 95 % bootstrap interval."""

    mean: float
    low: float
    high: float


class PromptRow(msgspec.Struct, frozen=True):
    """Results of one way on one set: a system prompt and a sampling, by name. All values are means over questions.

    ``f1``, ``exact_match`` and ``subspan_match`` are of the ``answerable`` questions, the last one without regard to
    what else an answer says. ``refused_answerable`` and ``refused_unanswerable`` are the shares of these questions
    whose answers are refusals. ``score`` is F1 over all questions, where an unanswerable one counts 1 if it is refused
    and else 0 (SQuAD 2.0, Rajpurkar et al., 2018).

    ``repeated_4grams`` is seq-rep-4, ``looping`` the share of answers half of whose 4-grams repeat, ``cut`` the share
    that the limit of tokens ended, ``tokens`` the tokens of an answer.

    ``differences`` are those from the baseline, by the names of these fields; the baseline has none.
    """

    set: str
    prompt: str
    sampling: str
    answerable: int
    unanswerable: int
    score: float
    f1: float
    exact_match: float
    subspan_match: float
    refused_answerable: float
    refused_unanswerable: float
    repeated_4grams: float
    looping: float
    cut: float
    tokens: float
    differences: dict[str, Difference]


Measure = Callable[[AskedQuestion, Given], float | None]
"""None for a question that does not count."""


def _of_answerable(value: Callable[[str, Sequence[str]], float]) -> Measure:
    return lambda asked, given: float(value(given.text, asked.answers)) if asked.answers else None


def _score(asked: AskedQuestion, given: Given) -> float:
    return f1(given.text, asked.answers) if asked.answers else float(refuses(given.text))


MEASURES: Mapping[str, Measure] = {
    "score": _score,
    "f1": _of_answerable(f1),
    "exact_match": _of_answerable(exact_match),
    "subspan_match": _of_answerable(holds_answer),
    "refused_answerable": lambda asked, given: float(refuses(given.text)) if asked.answers else None,
    "refused_unanswerable": lambda asked, given: None if asked.answers else float(refuses(given.text)),
    "repeated_4grams": lambda _, given: repeated_share(given.text),
    "looping": lambda _, given: float(repeated_share(given.text) >= LOOPS_FROM),
    "cut": lambda _, given: float(given.cut),
    "tokens": lambda _, given: given.tokens,
}


def rows_of(
    name: str, asked: Sequence[AskedQuestion], given: Mapping[Way, Sequence[Given]], seed: int
) -> list[PromptRow]:
    """Return one row for each way. Each has answered all ``asked`` questions, in their order."""
    values = {
        way: {measure: _values(measure, asked, answers) for measure in MEASURES} for way, answers in given.items()
    }
    answerable = sum(bool(one.answers) for one in asked)
    return [
        PromptRow(
            set=name,
            prompt=way.prompt,
            sampling=way.sampling,
            answerable=answerable,
            unanswerable=len(asked) - answerable,
            differences={
                measure: _difference(mine, values[BASELINE][measure], seed)
                for measure, mine in own.items()
                if mine and way != BASELINE
            },
            **{measure: fmean(mine) if mine else 0.0 for measure, mine in own.items()},
        )
        for way, own in values.items()
    ]


def _values(measure: str, asked: Sequence[AskedQuestion], answers: Sequence[Given]) -> list[float]:
    measured = (MEASURES[measure](one, answer) for one, answer in zip(asked, answers, strict=True))
    return [value for value in measured if value is not None]


def _difference(mine: Sequence[float], baseline: Sequence[float], seed: int) -> Difference:
    differences = [one - other for one, other in zip(mine, baseline, strict=True)]
    return Difference(fmean(differences), *bootstrap_interval(differences, seed))
