"""``ragtree bench families``: small models of each family, served from every tier.

A stream of prompts compares answers with the cache and without any. TTFT by where a prompt's KV is stands beside plain
vLLM's, computed and with its own prefix cache; the time of later tokens beside that without the connector.

``--config`` takes a folder with the ``config.json`` of any model that transformers knows, with fewer layers and smaller
numbers.

Limits: random weights. A kind that this machine's vLLM cannot run is listed with the reason.
"""

import asyncio
import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from protocol.errors import ConfigError
from services.cli.connection import JsonOption
from services.cli.output import StepBars, print_json, results
from services.config import load_config


def families(
    family: Annotated[list[str] | None, typer.Option(help="A family; by default all. May be repeated.")] = None,
    config: Annotated[
        Path | None,
        typer.Option(exists=True, file_okay=False, help="A folder with a config.json, instead of the families."),
    ] = None,
    dtype: Annotated[str, typer.Option(help="Type of the weights of --config: float32 or bfloat16.")] = "bfloat16",
    prompts: Annotated[int, typer.Option(min=1, help="Prompts to each model.")] = 100,
    as_json: JsonOption = False,
) -> None:
    """Serve small models of each family from every tier, and compare answers and times with plain vLLM."""
    from generator.models import ModelStore
    from ragtree_lab.families.benchmark import FamiliesBenchmark
    from ragtree_lab.families.shapes import FAMILIES, Family

    unknown = sorted({*(family or ())} - FAMILIES.keys())
    if unknown:
        raise ConfigError(f"no family is called {', '.join(unknown)}; there are {', '.join(FAMILIES)}", "family")
    chosen = {name: FAMILIES[name] for name in family or FAMILIES}
    if config is not None:
        chosen = {config.name: Family(_shape(config / "config.json"), dtype)}
    settings = load_config()
    benchmark = FamiliesBenchmark(
        settings.generator,
        settings.controller,
        ModelStore(settings.cache_dir),
        settings.cache_dir / "profiles",
        prompts,
    )
    with StepBars() as show:
        measured = asyncio.run(benchmark.run(chosen, show))
    if as_json:
        print_json(measured)
        return
    cases = ("computed", "own_cache", "kept", "gpu", "host", "disk")
    table = Table("family", "keeps", "mismatches", "found", *cases, "later token, with and without")
    for row in measured.rows:
        if row.refused:
            table.add_row(row.family, f"refused: {row.refused}")
            continue
        table.add_row(
            row.family,
            ", ".join(row.groups),
            f"{row.mismatches} of {row.prompts}",
            f"{row.found_share:.0%}",
            *(f"{row.ttft_ms[case]:.1f} ms" for case in cases),
            f"{row.ms_per_token['with']:.2f}, {row.ms_per_token['without']:.2f} ms",
        )
    results.print(table)


def _shape(file: Path) -> dict[str, Any]:
    """What a model's configuration says. Raises ConfigError if that is not one."""
    try:
        shape = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file} cannot be read: {error}", "config") from error
    if not isinstance(shape, dict) or not isinstance(shape.get("model_type"), str):
        raise ConfigError(f"{file} names no model_type, so it is no model's config.json", "config")
    return shape
