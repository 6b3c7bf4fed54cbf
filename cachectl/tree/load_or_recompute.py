"""Load, compose or recompute: what of a prompt gets KV that exists, and what is computed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from cachectl.nodes.node import Copy, PathDocument
from cachectl.tiers.own_loads import OwnLoads
from cachectl.tiers.peer_links import PeerLinks
from cachectl.tiers.tier_cache import TierCache
from protocol.generation import ASKED_TOKENS
from protocol.tiers import Tier


class TreeCosts(NamedTuple):
    """What an instance takes, in seconds.

    ``prefill(cached, new)`` are those of a prefill, and ``load(tokens, tier)`` those that the bytes of a load from a
    tier of its own location take; None: loads are free. Until it is measured, reading a token's KV at another location
    takes ``peer_token_s``. Moving it to another position takes ``move_s``.
    """

    prefill: Callable[[int, int], float]
    load: Callable[[int, Tier], float] | None = None
    peer_token_s: float = 0.0
    move_s: float = 0.0


class Loading(NamedTuple):
    """What a plan loads of the copies that it finds: the first ``documents``, of ``tokens``, in ``seconds``.

    Of these, ``constant_s`` pass however few the tokens are.
    """

    documents: int
    tokens: int
    seconds: float
    constant_s: float = 0.0


class Composing(NamedTuple):
    """What a prefill composes: the copy that donates each document after the loaded ones, or None to compute it.

    What is computed although others donate is computed first, without them, so that it can be kept and donates too.
    ``reused`` tokens are spared in all. Loading and moving the donors' KV, and selecting what is computed again, takes
    ``seconds``.
    """

    donors: tuple[Copy | None, ...]
    reused: int
    seconds: float

    def exact(self, loaded: int) -> list[int]:
        """Which documents of the prompt are exact: the ``loaded`` ones, and those after them without a donor."""
        return [*range(loaded), *[loaded + index for index, donor in enumerate(self.donors) if donor is None]]

    def donor(self, index: int, loaded: int) -> Copy | None:
        """What donates the document at ``index`` of a prompt with ``loaded`` ones, if anything does."""
        return self.donors[index - loaded] if index >= loaded else None


class LoadOrRecompute:
    """Chooses what a prompt loads and what it composes so that the first token comes soonest, by the ``costs``.

    Loads from an instance's own location take what ``loads`` says, and those from other ones what the ``links`` say.
    """

    def __init__(self, costs: TreeCosts, loads: OwnLoads, links: PeerLinks) -> None:
        self._cost = costs.prefill
        self._load = costs.load
        self._move_s = costs.move_s
        self._loads = loads
        self._links = links

    def load_seconds(self, copy: Copy, gpu: TierCache) -> float:
        """Seconds to load a copy for the instance with this GPU, besides ``constant_s``. Loads move whole pages."""
        if self._load is None:
            return 0.0
        cache, tokens = copy.cache, copy.node.room
        if gpu.reaches(cache):
            return self._loads.seconds(gpu.owner, tokens, cache.tier)
        slower_s = self._load(tokens, cache.tier) - self._load(tokens, Tier.HOST)
        return self._links.seconds(gpu.owner, cache.location, tokens, cache.tier, slower_s)

    def constant_s(self, copy: Copy, gpu: TierCache) -> float:
        """Seconds that a load which includes a copy takes at least. Links have their own latency."""
        return self._loads.constant_s(gpu.owner, copy.cache.tier) if gpu.reaches(copy.cache) else 0.0

    def loading(self, found: Sequence[Copy], prompt_tokens: int, gpu: TierCache) -> Loading:
        """How much of ``found`` to load into a GPU for a prompt of ``prompt_tokens`` tokens, its question included.

        Copies in the GPU cost nothing. Of equally fast prefixes the longest wins.
        """
        tokens = 0
        if self._load is None or not found or found[-1].cache.tier is Tier.GPU:
            for copy in found:
                tokens += copy.node.tokens
            return Loading(len(found), tokens, 0.0)
        constant_s = seconds = 0.0
        best: Loading | None = None
        best_s = 0.0
        for index, copy in enumerate(found):
            if copy.cache.tier is not Tier.GPU:
                if best is None:
                    # Faster tiers come first on a path, so the GPU has nothing after this document.
                    best, best_s = Loading(index, tokens, 0.0), self._cost(tokens, prompt_tokens - tokens)
                seconds += self.load_seconds(copy, gpu)
                constant_s = max(constant_s, self.constant_s(copy, gpu))
            tokens += copy.node.tokens
            if best is not None:
                total_s = constant_s + seconds + self._cost(tokens, prompt_tokens - tokens)
                if total_s <= best_s:
                    best, best_s = Loading(index + 1, tokens, constant_s + seconds, constant_s), total_s
        assert best is not None
        return best

    def composing(
        self,
        donors: Sequence[Copy | None],
        documents: Sequence[PathDocument],
        loading: Loading,
        question_tokens: int,
        share: float,
        gpu: TierCache,
    ) -> Composing | None:
        """What to compose of ``documents``, the ones after what is loaded; None if computing all is sooner.

        Each has a copy among ``donors``, or None. ``share`` of the donated tokens is computed again. They are loaded
        for the instance with this GPU.
        """
        computed = question_tokens + sum([document.tokens for document in documents])
        exact_s = self._cost(loading.tokens, computed)
        per_token_s = exact_s / computed
        chosen: list[Copy | None] = []
        # Selecting runs the end of the question over the documents.
        asked = min(question_tokens, ASKED_TOKENS)
        reused, constant_s, seconds = 0, 0.0, self._cost(loading.tokens + computed - question_tokens, asked)
        for donor, document in zip(donors, documents, strict=True):
            spared = document.tokens - round(share * document.tokens)
            if donor is None or self._donate_seconds(donor, gpu) >= spared * per_token_s:
                if any(chosen):
                    # It is computed first, and then composed after the donated ones.
                    reused -= document.tokens - spared
                chosen.append(None)
                continue
            chosen.append(donor)
            reused += spared
            seconds += self._donate_seconds(donor, gpu)
            constant_s = max(constant_s, self.constant_s(donor, gpu))
        # Donors are loaded together with the prefix.
        seconds += max(0.0, constant_s - loading.constant_s)
        # Computing documents first takes another pass. That does not count: it is worth what it keeps.
        if reused <= 0 or seconds + self._cost(loading.tokens + reused, computed - reused) >= exact_s:
            return None
        return Composing(tuple(chosen), reused, seconds)

    def _donate_seconds(self, donor: Copy, gpu: TierCache) -> float:
        return self.load_seconds(donor, gpu) + donor.node.tokens * self._move_s
