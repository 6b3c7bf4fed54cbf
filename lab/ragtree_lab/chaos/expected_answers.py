"""The expected answers: those of an undisturbed stack."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from loadtest.reporting.request_records import Outcome, QueryRecord


class Sources(NamedTuple):
    """The documents found for an answer, in order, and those that it cites."""

    found: tuple[str, ...]
    cited: tuple[str, ...]

    @classmethod
    def of(cls, record: QueryRecord) -> "Sources":
        """Return the sources of a query."""
        return cls(tuple(record.sources), tuple(record.cited))


class ExpectedAnswers:
    """The expected answers by question, learnt from an undisturbed run.

    An engine's arithmetic may depend on what else it computes, so a question may have several expected texts. Its
    sources are always the same. If the engine repeats the first source, as the fake one does, ``expected`` has the
    documents' texts by id, and each learnt answer must be the beginning of one.
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
        """Return why the undisturbed run is no reference for these questions; empty if it is one."""
        unknown = sum(question not in self._texts for question in questions)
        found = [f"{unknown} questions were not answered by the undisturbed stack"] if unknown else []
        unstable = sum(len(sources) > 1 for sources in self._sources.values())
        if unstable:
            found.append(f"{unstable} questions had varying sources in the undisturbed run")
        if self._expected is not None:
            unexpected = sum(not self._repeats(query, text) for query, texts in self._texts.items() for text in texts)
            found += [f"{unexpected} undisturbed answers do not repeat their first source"] if unexpected else []
        return found

    def wrong(self, record: QueryRecord) -> str | None:
        """Return what is wrong with an answer, or None."""
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
    """Return the letters and digits in lower case. Tokenizers may change case and spacing."""
    return "".join(filter(str.isalnum, text.lower()))
