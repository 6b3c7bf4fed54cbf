"""What an extractor finds, and what was uploaded as triplets beside it."""

from collections.abc import Iterable, Sequence

from retriever.graph.extractors.base import Extractor, GraphSource, Statement
from retriever.graph.extractors.placed import placed, statement_of


class WithGiven:
    """Adds each chunk's triplets to what an extractor finds in its text.

    The fingerprint is the extractor's. That is enough, because the triplets of a chunk never change.
    """

    def __init__(self, extractor: Extractor) -> None:
        self._extractor = extractor

    @property
    def fingerprint(self) -> str:
        """Identifies what the extractor finds."""
        return self._extractor.fingerprint

    def extract(self, sources: Sequence[GraphSource]) -> list[Sequence[Statement] | None]:
        """Return the statements of each chunk; None for one that cannot be read and has no triplets.

        Raises what the extractor raises.
        """
        read = self._extractor.extract([source._replace(triplets=()) for source in sources])
        return [
            _joined(found or (), placed(source.text, source.triplets)) if source.triplets else found
            for source, found in zip(sources, read, strict=True)
        ]

    def close(self) -> None:
        """End what the extractor has started."""
        self._extractor.close()


def _joined(found: Iterable[Statement], given: Iterable[Statement]) -> list[Statement]:
    """All of these statements, in the order of the text, those of the same characters as one."""
    joined = {(statement.start, statement.end): statement for statement in found}
    for statement in given:
        span = statement.start, statement.end
        same = joined.get(span, Statement(*span, ()))
        joined[span] = statement_of(*span, (*same.triplets, *statement.triplets), same.names)
    return [joined[span] for span in sorted(joined)]
