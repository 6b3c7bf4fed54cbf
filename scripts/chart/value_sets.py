"""The chart, and the value sets that it is checked with."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
CHART = ROOT / "helm" / "ragtree"


def value_sets() -> dict[str, tuple[Path, ...]]:
    """Return the value files by name: none at all, the presets, and those in the chart's ci/."""
    files = [*sorted(CHART.glob("values-*.yaml")), *sorted((CHART / "ci").glob("*-values.yaml"))]
    return {"defaults": (), **{path.stem.removeprefix("values-").removesuffix("-values"): (path,) for path in files}}
