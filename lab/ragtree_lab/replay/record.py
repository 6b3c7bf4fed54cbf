"""What a replay has measured so far."""

from collections.abc import Iterator
from typing import NamedTuple

from protocol.prompts import Prompt
from ragtree_lab.measuring.baselines import Steps
from ragtree_lab.measuring.phases import Measured
from ragtree_lab.measuring.systems import OURS, OURS_EXACT
from ragtree_lab.replay.sustained_rate import Sustained


class Variant(NamedTuple):
    """A system in one setting of its engine's steps. Ours has only its own."""

    name: str
    steps: Steps = Steps.OURS

    def __str__(self) -> str:
        return self.name if self.name in (OURS, OURS_EXACT) else f"{self.name} ({self.steps} steps)"


RAGTREE = Variant(OURS)


class Paths:
    """Counts the prompts of our system, and those whose documents follow each other like this for the first time."""

    def __init__(self) -> None:
        self._seen: set[tuple[str, ...]] = set()
        self.warmed = 0
        self.prompts = 0
        self.new = 0
        self.tokens = 0

    def warm_up(self, prompt: Prompt) -> None:
        """Remember a prompt that is not measured."""
        self.warmed += 1
        self._seen.add(_path(prompt))

    def add(self, prompt: Prompt) -> None:
        """Count a measured prompt."""
        self.prompts += 1
        self.new += _path(prompt) not in self._seen
        self.tokens += prompt.token_count
        self._seen.add(_path(prompt))


class Record:
    """Results by system: without load, with many requests all at once, and by step of the rate."""

    def __init__(self) -> None:
        self.unloaded: dict[Variant, Measured] = {}
        self.at_once: dict[Variant, Measured] = {}
        self.loaded: dict[Variant, dict[int, Measured]] = {}
        self.paths = Paths()

    def rule(self, variant: Variant) -> Sustained:
        """When this system sustains a rate."""
        return Sustained(self.unloaded[variant])

    def better(self, name: str) -> Variant | None:
        """The setting of a baseline with the lower mean TTFT of many requests at once. None if none is measured."""
        measured = [variant for variant in self.at_once if variant.name == name]
        return min(measured, key=lambda variant: self.at_once[variant].mean_ttft_ms, default=None)

    def sustained(self, variant: Variant) -> Iterator[int]:
        """The sustained steps below the first that is not, in rising order."""
        for step, measured in sorted(self.loaded.get(variant, {}).items()):
            if not self.rule(variant).holds(measured):
                return
            yield step

    def is_beaten(self, variant: Variant) -> bool:
        """Whether a rate was measured that the system does not sustain."""
        return any(not self.rule(variant).holds(measured) for measured in self.loaded.get(variant, {}).values())


def _path(prompt: Prompt) -> tuple[str, ...]:
    return tuple(segment.key for segment in prompt.documents)
