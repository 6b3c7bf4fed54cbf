"""The chart, and what it is rendered with to be checked."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
CHART = ROOT / "helm" / "ragtree"


def value_sets() -> dict[str, tuple[Path, ...]]:
    """Files of values by a name for them: none at all, the presets, and what stands in the chart's ci/."""
    files = [*sorted(CHART.glob("values-*.yaml")), *sorted((CHART / "ci").glob("*-values.yaml"))]
    return {"defaults": (), **{path.stem.removeprefix("values-").removesuffix("-values"): (path,) for path in files}}
