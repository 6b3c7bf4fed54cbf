"""Compose or compute: whether documents behind a request's cached prefix get the KV that they have elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from cachectl.nodes.node import Copy, PathDocument
from cachectl.tiers.tier_cache import TierCache
from cachectl.tree.load_or_recompute import LoadCost, Loading
from protocol.generation import ASKED_TOKENS


class Composing(NamedTuple):
    """What a prefill composes: the copy that donates each document behind the loaded ones, or None to compute it.

    What is computed although others donate is computed first, without them, so that it can be kept and donates too.
    ``reused`` tokens are spared in all. Loading and moving the donors' KV, and selecting what is computed again, takes
    ``seconds``.
    """

    donors: tuple[Copy | None, ...]
    reused: int
    seconds: float

    def exact(self, loaded: int) -> list[int]:
        """Which documents of the prompt are exact: the ``loaded`` ones, and those behind them without a donor."""
        return [*range(loaded), *[loaded + index for index, donor in enumerate(self.donors) if donor is None]]

    def donor(self, index: int, loaded: int) -> Copy | None:
        """What donates the document at ``index`` of a prompt with ``loaded`` ones, if anything does."""
        return self.donors[index - loaded] if index >= loaded else None


class ComposeOrCompute:
    """Chooses the documents to compose so that the first token comes soonest.

    ``cost(cached, new)`` gives the seconds of a prefill, and ``loads`` those of a load. Moving a token's KV to another
    position takes ``move_s``.
    """

    def __init__(self, cost: Callable[[int, int], float], loads: LoadCost, move_s: float) -> None:
        self._cost = cost
        self._loads = loads
        self._move_s = move_s

    def choose(
        self,
        donors: Sequence[Copy | None],
        documents: Sequence[PathDocument],
        loading: Loading,
        question_tokens: int,
        share: float,
        gpu: TierCache,
    ) -> Composing | None:
        """What to compose of ``documents``, the ones behind what is loaded; None if computing all of them is sooner.

        Each has a copy among ``donors``, or None. ``share`` of the donated tokens is computed again. They are loaded
        for the instance with this GPU.
        """
        computed = question_tokens + sum([document.tokens for document in documents])
        exact_s = self._cost(loading.tokens, computed)
        per_token_s = exact_s / computed
        chosen: list[Copy | None] = []
        reused, seconds = 0, self._select_seconds(loading.tokens + computed, question_tokens)
        for donor, document in zip(donors, documents, strict=True):
            spared = document.tokens - round(share * document.tokens)
            if donor is None or self._donate_seconds(donor, gpu) >= spared * per_token_s:
                if any(chosen):
                    # It is computed first, and then composed behind the donated ones.
                    reused -= document.tokens - spared
                chosen.append(None)
                continue
            chosen.append(donor)
            reused += spared
            seconds += self._donate_seconds(donor, gpu)
        # Computing documents first takes another pass. That does not count: it is worth what it keeps.
        if reused <= 0 or seconds + self._cost(loading.tokens + reused, computed - reused) >= exact_s:
            return None
        return Composing(tuple(chosen), reused, seconds)

    def _donate_seconds(self, donor: Copy, gpu: TierCache) -> float:
        return self._loads.seconds(donor, gpu) + donor.node.tokens * self._move_s

    def _select_seconds(self, prompt_tokens: int, question_tokens: int) -> float:
        """Selecting runs the end of the question over the documents."""
        return self._cost(prompt_tokens - question_tokens, min(question_tokens, ASKED_TOKENS))
