"""What an extractor is, and what it returns."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from protocol.errors import Unavailable
from protocol.graph import Triplet
from retriever.store.incoming import SourceText


class Statement(NamedTuple):
    """A sentence of a chunk that names entities: characters ``start`` to ``end`` of its text.

    ``names`` has every entity of the sentence once, also those of the ``triplets``.
    """

    start: int
    end: int
    names: tuple[str, ...]
    triplets: tuple[Triplet, ...] = ()


class ExtractorEnded(Unavailable):
    """The process that reads chunks has ended, perhaps because of what it read."""


class QuestionReader(Protocol):
    """Reads questions. Thread-safe."""

    def names_in(self, question: str) -> Sequence[str]:
        """Return the entities that a question names."""


class Extractor(Protocol):
    """Reads entities and relations from chunks. Thread-safe."""

    @property
    def fingerprint(self) -> str:
        """Identifies what the extractor finds. Chunks that were read under another one are read again."""

    def extract(self, sources: Sequence[SourceText]) -> Sequence[Sequence[Statement] | None]:
        """Return the statements of each chunk, in the order of its text; None for a chunk that cannot be read.

        Raises Unavailable if a retry may succeed, ExtractorEnded if the chunks may have ended a process, and
        ConfigError if nothing can be read as it is configured.
        """

    def close(self) -> None:
        """End what the extractor has started. ``extract`` then raises Unavailable, also where it runs."""
