"""The requests of a run, derived from its settings before anything is sent."""

from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import NamedTuple

from loadtest.settings import LoadSettings
from loadtest.traffic.arrival_schedule import Step, parse_schedule, poisson_arrivals
from loadtest.traffic.question_files import read_questions, read_trace
from loadtest.traffic.synthetic_corpus import SyntheticCorpus
from loadtest.traffic.zipf import zipf_draws


class Arrival(NamedTuple):
    """A request that is due ``at`` seconds after the start, independent of earlier ones.

    If ``leaves_after`` is not None, the client disconnects after that many pieces of text.
    """

    number: int
    at: float
    query: str
    leaves_after: int | None


class Traffic:
    """The arrivals of a run, equal for equal settings. Raises BadOption for invalid settings.

    ``corpus`` must be ingested first. It is None if the questions come from a file. ``steps`` are the parts of the run
    that are reported separately. A trace has none.
    """

    def __init__(self, settings: LoadSettings) -> None:
        self._settings = settings
        self._trace = read_trace(Path(settings.trace)) if settings.trace else []
        self._questions = read_questions(Path(settings.questions)) if settings.questions else []
        self.corpus: SyntheticCorpus | None = None
        if not self._trace and not self._questions:
            self.corpus = SyntheticCorpus(settings.documents, settings.document_words, settings.seed)
            self._questions = self.corpus.questions
        self.steps = () if self._trace else parse_schedule(settings.schedule)

    @property
    def collection(self) -> str | None:
        """The collection to query; None for the stack's default."""
        return self._settings.collection or (self.corpus.name if self.corpus else None)

    @property
    def seconds(self) -> float:
        """The time from the start to the last possible arrival."""
        return self._trace[-1].at if self._trace else sum(step.seconds for step in self.steps)

    def arrivals(self) -> Iterator[Arrival]:
        """Yield the requests in the order of their times."""
        leaving = self.draws("leaving")
        for number, (at, query) in enumerate(self._due()):
            leaves = leaving.random() < self._settings.disconnect_share
            yield Arrival(number, at, query, leaving.randrange(self._settings.max_tokens) if leaves else None)

    def times(self, purpose: str, rate: float) -> Iterator[float]:
        """Yield the times of another activity with a constant rate."""
        if rate and self.seconds:
            yield from poisson_arrivals([Step(rate, rate, self.seconds)], self.draws(purpose))

    def draws(self, purpose: str) -> Random:
        """Return random numbers that are independent of those for other purposes."""
        return Random(f"{self._settings.seed}/{purpose}")  # noqa: S311 - repeatable

    def _due(self) -> Iterator[tuple[float, str]]:
        if self._trace:
            return iter([(line.at, line.query) for line in self._trace])
        asked = zipf_draws(self._questions, self._settings.zipf, self.draws("questions"))
        return zip(poisson_arrivals(self.steps, self.draws("arrivals")), asked, strict=False)
