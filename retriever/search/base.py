"""What a searcher is."""

from collections.abc import Generator
from typing import Protocol

from protocol.retrieval import CandidateSet, SearchRequest


class StagedSearcher(Protocol):
    """Searches in stages."""

    def stages(self, request: SearchRequest) -> Generator[CandidateSet, None, None]:
        """Yield the candidates of each stage; the last set is final."""
