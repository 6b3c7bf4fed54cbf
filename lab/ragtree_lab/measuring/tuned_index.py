"""Indexes with another tuning than the one that serves."""

from typing import ClassVar

from retriever.settings import IndexSettings, IndexTuning


def tuned(settings: IndexSettings, chosen: IndexTuning) -> IndexSettings:
    """The settings with the ``chosen`` tuning, which is fixed outside of benchmarks."""

    class Tuned(IndexSettings):
        tuning: ClassVar[IndexTuning] = chosen

    return Tuned(**dict(settings))
