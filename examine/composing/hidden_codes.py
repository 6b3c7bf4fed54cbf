"""Codes that are hidden in texts: the projects that have them, and how a sentence is hidden."""

import random
from collections.abc import Iterable
from itertools import product

_FIRST = (
    "amber brave calm crimson daring eager fabled gentle golden hidden humble icy jolly keen lively lofty lunar mellow "
    "misty noble olive patient proud quiet rapid rustic scarlet silent silver solemn stormy sunny tidal upright "
    "valiant velvet vivid wandering winter wooden zealous ancient bronze coastal desert emerald"
)
_SECOND = (
    "anchor arrow badger beacon bridge canyon castle comet compass condor cypress dolphin falcon forest fountain "
    "glacier harbor heron island jaguar lantern maple meadow mirror orchard otter panther pepper pilgrim prairie "
    "puffin raven river rocket saddle sparrow summit temple thunder tiger tulip turtle valley violin walnut willow"
)

PROJECTS = tuple(f"{first} {second}" for first, second in product(_FIRST.split(), _SECOND.split()))
"""Names to ask for."""


def hide(draws: random.Random, text: str, sentences: Iterable[str]) -> str:
    """Return a text with sentences at random places in front of its last one."""
    parts = text.split(". ")
    for sentence in sentences:
        parts.insert(draws.randint(0, len(parts) - 1), sentence)
    return ". ".join(parts)
