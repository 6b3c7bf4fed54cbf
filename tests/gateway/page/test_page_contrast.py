"""The page's colour contrasts meet WCAG 2.2 AA in light and dark: 4.5 for text, 3 for the rest."""

import re
from importlib.resources import files

import pytest

STYLE = (files("gateway") / "page" / "style.css").read_text(encoding="utf-8")
PAIRS = dict(re.findall(r"--([\w-]+): light-dark\((#[0-9a-f]{6}, #[0-9a-f]{6})\)", STYLE))
TEXT, GRAPHICS = 4.5, 3.0
LANES = ("search", "speculation", "queue", "load", "prefill", "answer")


def luminance(colour: str) -> float:
    channels = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
@pytest.mark.parametrize(
    ("over", "under", "least"),
    [
        *((text, ground, TEXT) for text in ("ink", "soft") for ground in ("panel", "ground", "sunk")),
        ("on-accent", "accent", TEXT),
        ("accent", "panel", TEXT),
        ("on-mark", "mark", TEXT),
        ("problem", "problem-ground", TEXT),
        ("problem", "ground", TEXT),
        *((f"on-age-{age}", f"age-{age}", TEXT) for age in range(6)),
        *(("panel", lane, TEXT) for lane in ("search", "answer")),
        *((lane, "panel", GRAPHICS) for lane in LANES),
        ("strong-line", "panel", GRAPHICS),
        ("focus", "panel", GRAPHICS),
        ("focus", "ground", GRAPHICS),
    ],
)
def test_contrast(scheme: int, over: str, under: str, least: float):
    colours = [PAIRS[name].split(", ")[scheme] for name in (over, under)]
    assert contrast(*colours) >= least, (over, under, colours)
