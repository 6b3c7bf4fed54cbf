"""Which answers are right: those that an undisturbed stack gave, of the documents that the question is about."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from loadtest.reporting.records import Outcome, QueryRecord


class Sources(NamedTuple):
    """The documents that were found for an answer, in their order, and those that it cites."""

    found: tuple[str, ...]
    cited: tuple[str, ...]

    @classmethod
    def of(cls, record: QueryRecord) -> "Sources":
        """Those of a query."""
        return cls(tuple(record.sources), tuple(record.cited))


class RightAnswers:
    """Answers by question, learnt of an undisturbed run.

    An engine's arithmetic may differ by what else it computes at the time, so a question may have several right texts;
    its sources are always the same. ``expected`` are the texts of documents by their ids where the engine repeats the
    first source, as the fake one does: then what was learnt must begin that.
    """

    def __init__(self, undisturbed: Iterable[QueryRecord], expected: Mapping[str, str] | None = None) -> None:
        self._expected = expected
        self._texts: dict[str, set[str]] = defaultdict(set)
        self._sources: dict[str, set[Sources]] = defaultdict(set)
        for record in undisturbed:
            if record.outcome is Outcome.ANSWERED:
                self._texts[record.query].add(record.text)
                self._sources[record.query].add(Sources.of(record))

    def problems(self, questions: Sequence[str]) -> list[str]:
        """Why the undisturbed run is no measure for these questions; empty where it is one."""
        unknown = sum(question not in self._texts for question in questions)
        found = [f"{unknown} questions were not answered by the undisturbed stack"] if unknown else []
        torn = sum(len(sources) > 1 for sources in self._sources.values())
        if torn:
            found.append(f"{torn} questions had other sources from one time to the next, undisturbed")
        if self._expected is not None:
            strange = sum(not self._repeats(query, text) for query, texts in self._texts.items() for text in texts)
            found += [f"{strange} undisturbed answers do not repeat their first source"] if strange else []
        return found

    def wrong(self, record: QueryRecord) -> str | None:
        """What is wrong with an answer; None where nothing is."""
        if Sources.of(record) not in self._sources[record.query]:
            return f"other sources: {record.sources}, cited {record.cited}"
        if record.text not in self._texts[record.query]:
            return f"another text: {record.text!r}"
        return None

    def _repeats(self, query: str, text: str) -> bool:
        assert self._expected is not None
        return all(
            bool(_letters(text)) and _letters(self._expected[sources.found[0]]).startswith(_letters(text))
            for sources in self._sources[query]
        )


def _letters(text: str) -> str:
    """What tokenisers leave of a text: case and what stands between words may differ."""
    return "".join(filter(str.isalnum, text.lower()))
