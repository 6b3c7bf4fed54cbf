"""What is asked and when, worked out of the settings before anything is sent."""

from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import NamedTuple

from loadtest.options import LoadSettings
from loadtest.traffic.arrivals import Step, parse_schedule, poisson_arrivals
from loadtest.traffic.corpus import SyntheticCorpus
from loadtest.traffic.popularity import zipf_draws
from loadtest.traffic.question_files import read_questions, read_trace


class Arrival(NamedTuple):
    """A request that is due ``at`` seconds after the begin, whatever has become of those before it.

    Its client leaves once ``leaves_after`` pieces of the answer have come, if that is not None.
    """

    number: int
    at: float
    query: str
    leaves_after: int | None


class Traffic:
    """The arrivals of one run; the same for equal settings. Raises BadOption for those that make none.

    ``corpus`` is what has to be ingested first, None where the questions come from a file; ``steps`` are the parts of
    the run that are looked at one by one, one part for a trace.
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
        """The collection that is asked; None: the stack's default."""
        return self._settings.collection or (self.corpus.name if self.corpus else None)

    @property
    def seconds(self) -> float:
        """From the begin to where the last arrival may be."""
        return self._trace[-1].at if self._trace else sum(step.seconds for step in self.steps)

    def arrivals(self) -> Iterator[Arrival]:
        """The requests, in the order of their times."""
        leaving = self.draws("leaving")
        for number, (at, query) in enumerate(self._due()):
            leaves = leaving.random() < self._settings.disconnect_share
            yield Arrival(number, at, query, leaving.randrange(self._settings.max_tokens) if leaves else None)

    def times(self, purpose: str, rate: float) -> Iterator[float]:
        """Times of something else that goes on during the run, at a steady rate."""
        if rate and self.seconds:
            yield from poisson_arrivals([Step(rate, rate, self.seconds)], self.draws(purpose))

    def draws(self, purpose: str) -> Random:
        """Random numbers that no other purpose's change."""
        return Random(f"{self._settings.seed}/{purpose}")  # noqa: S311 - a repeatable draw

    def _due(self) -> Iterator[tuple[float, str]]:
        if self._trace:
            return iter([(line.at, line.query) for line in self._trace])
        asked = zipf_draws(self._questions, self._settings.zipf, self.draws("questions"))
        return zip(poisson_arrivals(self.steps, self.draws("arrivals")), asked, strict=False)
