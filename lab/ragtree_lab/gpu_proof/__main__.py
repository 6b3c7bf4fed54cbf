"""Checks on this machine that KV survives its way through a GPU, and writes what it found to a file (docs/gpu.md)."""

import argparse
import sys
from pathlib import Path

from rich.console import Console

from ragtree_lab.gpu_proof.proof import GPU_BUDGET_S, LEVELS, QUICK_BUDGET_S, Scope, prove


def main() -> int:
    """Return 1 if a check failed or none passed, else 0."""
    options = _options()
    budget = options.budget or (QUICK_BUDGET_S if options.quick else GPU_BUDGET_S)
    report = prove(
        Scope(budget, options.levels, options.only, options.small, options.quick, options.cpu_python, options.logs)
    )
    report.write(options.output)
    Console(width=200 if not sys.stdout.isatty() else None).print(report.table())
    return int(not report.proves)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/gpu-proof", description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("gpu-proof.json"), help="file for the report")
    parser.add_argument("--logs", type=Path, help="folder for the processes' logs, which are dropped by default")
    parser.add_argument("--budget", type=float, help="seconds; what no longer fits is skipped")
    parser.add_argument("--levels", type=_levels, default=LEVELS, help="1: blocks, 2: engines, 3: benchmarks")
    parser.add_argument("--only", default="", help="run only the checks whose name has this in it")
    parser.add_argument(
        "--cpu-python",
        default="",
        help="an interpreter with vLLM for a CPU, of the same version; its engine then shares KV",
    )
    parser.add_argument("--quick", action="store_true", help="four minutes: fixed costs, then answers from every tier")
    parser.add_argument("--small", action="store_true", help="the small form, which runs without a GPU anyway")
    return parser.parse_args()


def _levels(given: str) -> frozenset[int]:
    levels = frozenset(int(level) for level in given.split(","))
    if not levels <= LEVELS:
        raise argparse.ArgumentTypeError("levels are 1, 2 and 3")
    return levels


if __name__ == "__main__":
    sys.exit(main())
