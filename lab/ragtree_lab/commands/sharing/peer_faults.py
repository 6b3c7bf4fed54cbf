"""``ragtree bench peer-faults``: another machine that is killed, stopped, slow, cut off or lies, while queries go on.

All queries go to one machine, and read their documents' KV on another one. They arrive on a schedule, whatever became
of earlier ones. Each fault is compared with the same queries at the same rate when everything is computed: answers must
be the same, and no first token may come more than one timeout later. Then it takes the time until the machine serves
again.

Limits: the machines are engines on this one, and share its processors. A relay in between makes the faults of the link.
Queries must be so short that computing them keeps up with the rate: else the backlog is measured, not the fault.
Documents are synthetic.
"""

import asyncio
from typing import Annotated

import typer
from rich.table import Table

from ragtree_lab.commands.common.options import SeedOption
from services.cli.connection import JsonOption
from services.cli.output import StepBars, print_json, results
from services.config import load_config

_FAULTS = "killed,stopped,slow,cut,lying"


def peer_faults(
    faults: Annotated[str, typer.Option(help="Faults, in this order, separated by commas.")] = _FAULTS,
    rate: Annotated[float, typer.Option(min=0.1, help="Queries a second.")] = 4.0,
    seconds: Annotated[float, typer.Option(min=1, help="Seconds of queries before each fault, and during it.")] = 30.0,
    documents: Annotated[int, typer.Option(min=1, help="Documents that queries concern, in turn.")] = 60,
    document_tokens: Annotated[int, typer.Option(min=16, help="Tokens of each of them.")] = 64,
    answer_tokens: Annotated[int, typer.Option(min=1, help="Tokens of an answer.")] = 2,
    dtype: Annotated[
        str, typer.Option(help="Type of weights and KV. In bfloat16, computing twice may give two answers.")
    ] = "float32",
    kv_tokens: Annotated[int, typer.Option(min=512, help="KV cache of each engine, in tokens.")] = 2048,
    host_gib: Annotated[float, typer.Option(min=0.01, help="Host memory of the other machine for KV, in GiB.")] = 0.5,
    seed: SeedOption = 0,
    as_json: JsonOption = False,
) -> None:
    """Have a machine that others read from fail, and compare their answers and times with computing."""
    from generator.models import ModelStore
    from ragtree_lab.measuring.engines import ComparedEngines
    from ragtree_lab.sharing.fault_benchmark import PeerFaultsBenchmark, Queries
    from ragtree_lab.sharing.peer_faults import Fault

    try:
        chosen = [Fault(name) for name in faults.split(",")]
    except ValueError as error:
        raise typer.BadParameter(f"{error}; the faults are {_FAULTS}", param_hint="--faults") from error
    config = load_config()
    settings = config.generator.model_copy(update={"dtype": dtype})
    benchmark = PeerFaultsBenchmark(
        ComparedEngines(settings, ModelStore(config.cache_dir), at_once=2, kv_tokens=kv_tokens),
        config.controller,
        config.cache_dir / "profiles",
        dtype,
        Queries(rate, seconds, documents, document_tokens, answer_tokens),
        host_gib,
    )
    with StepBars() as show:
        result = asyncio.run(benchmark.run(chosen, seed, show))
    if as_json:
        print_json(result)
        return
    table = Table("fault", "phase", "queries", "wrong", "read", "failed reads", "TTFT, median", "longest", "late")
    for row in result.rows:
        for name, phase in (("before", row.before), ("during", row.during), ("after", row.after)):
            table.add_row(
                row.fault if name == "before" else "",
                name,
                f"{phase.queries}",
                f"{phase.wrong}",
                f"{phase.read_share:.0%}",
                f"{phase.failures}",
                f"{phase.ttft_p50_ms:.0f} ms",
                f"{phase.ttft_max_ms:.0f} ms",
                f"{phase.late}",
            )
    results.print(table)
    for row in result.rows:
        again = "" if row.served_again_s is None else f", serves again after {row.served_again_s:.1f} s"
        verdict = "as it should be" if row.passed else "; ".join(row.misses)
        results.print(
            f"{row.fault}: {verdict}{again}. Computed, the same queries take {row.computed_ttft_p50_ms:.0f} ms in the "
            f"median and {row.computed_ttft_max_ms:.0f} ms at most.",
            highlight=False,
        )
