"""The benchmarks of a suite, with their quick options and the data that they read."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from protocol.errors import ConfigError
from ragtree_lab.workloads.datasets import Dataset


class Benchmark(NamedTuple):
    """A benchmark: the options that make it quick, the question sets it needs, and whether it can draw a picture.

    ``trace`` is a trace that it prefers to its default one, if the data folder has it: a name and a folder.
    """

    name: str
    quick: str
    sets: tuple[str, ...] = ()
    trace: tuple[str, str] | None = None
    draws: bool = False

    def missing(self, data: Path) -> str:
        """Return which question set is missing below ``data``, in one sentence; empty if none is."""
        try:
            for name in self.sets:
                Dataset(data, name)
        except ConfigError as error:
            return str(error)
        return ""

    def arguments(self, data: Path, quick: bool, picture: Path) -> list[str]:
        """Return the command line, from the name on."""
        chosen = [self.name, *(shlex.split(self.quick) if quick else ())]
        if self.sets:
            chosen += ["--data", str(data)]
        elif self.trace is not None and (data / self.trace[1]).is_dir():
            chosen += ["--trace", self.trace[0], "--data", str(data)]
        if self.draws:
            chosen += ["--plot", str(picture)]
        return [*chosen, "--json"]


_SQUAD = ("squad",)

# Cheap ones first. `recall` embeds the documents that the later ones read.
BENCHMARKS = (
    Benchmark("scheduling", "--nodes 100000 --requests 5000"),
    Benchmark("policies", "--requests 4000", trace=("ragpulse", "trace_ragpulse"), draws=True),
    Benchmark(
        "controller",
        "--instances 10,100 --requests 500 --nodes 30000 --holders 1,4 --tree-nodes 30000,300000 --tree-requests 2000 "
        "--machines 10 --links 10 --machine-requests 50",
    ),
    Benchmark("retrieval", "--vectors 50000 --nlist 256 --queries 40"),
    Benchmark("recall", "--questions 300", _SQUAD),
    Benchmark("ingestion", "--one-in 80 --rounds 1 --questions 100", _SQUAD),
    Benchmark("follow-ups", ""),
    # Without options it measures every set that is there.
    Benchmark("graph", "--set dragonball --questions 60 --context-tokens 1000", ("dragonball",)),
    Benchmark("graph-policies", "--questions 60 --seeds 2", ("dragonball", "rgb")),
    Benchmark("tiers", "--rounds 3"),
    Benchmark("compose", "--questions 12 --shares 0.2 --rounds 3", _SQUAD),
    Benchmark("exactness", "--prompts 60 --control 20", _SQUAD),
    Benchmark("families", "--prompts 3"),
    Benchmark(
        "sustained",
        "--pairs 90 --stretch 30 --warm-up 30 --questions 200 --host-gib 0.0625 --disk-gib 0.1875",
        _SQUAD,
    ),
    Benchmark("sharing", "--tokens 500 --rounds 3 --documents 24 --queries 16 --turns 2"),
    Benchmark("peer-faults", "--faults stopped,lying --seconds 10 --documents 40"),
    Benchmark("orders", "--questions 24 --topic-questions 12", _SQUAD),
    Benchmark("prompts", "--questions 4 --max-tokens 64", ("squad", "nq_gold", "rgb", "dragonball")),
    Benchmark(
        "reorder",
        "--part-tokens 200 --kv-tokens 5824 --host-gib 0.25 --questions 2500 "
        "--warm-up 80 --saturating 40 --loads 1.2 --requests 160",
        _SQUAD,
    ),
    Benchmark(
        "speculation",
        "--vectors 100000 --nlist 512 --questions 10 --search-ratio 0.25,1 --rates 2,4 --sweep-questions 40",
    ),
    Benchmark("overhead", "--streams 1,4 --samples 8"),
    Benchmark("fixed-costs", "--rounds 3 --samples 8 --prompts 16 --turns 2"),
    Benchmark("replay", "--quick", _SQUAD, draws=True),
)
"""All benchmarks. The quick options together are meant for about an hour on two cores."""


def selected(only: Sequence[str], skip: Sequence[str]) -> list[Benchmark]:
    """Return the benchmarks named by ``only``, or all of them, without those named by ``skip``.

    Raises ConfigError for unknown names, and if none is left.
    """
    names = [benchmark.name for benchmark in BENCHMARKS]
    for option, given in (("only", only), ("skip", skip)):
        if unknown := [name for name in given if name not in names]:
            raise ConfigError(
                f"unknown benchmark {', '.join(unknown)} in --{option}; the benchmarks are {', '.join(names)}", option
            )
    chosen = [each for each in BENCHMARKS if each.name in (only or names) and each.name not in skip]
    if not chosen:
        raise ConfigError("--only and --skip together leave no benchmark to run", "skip")
    return chosen
