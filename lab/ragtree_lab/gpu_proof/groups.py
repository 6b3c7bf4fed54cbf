"""The groups of checks, each of which runs in a process of its own."""

from typing import Any

import msgspec

from ragtree_lab.families.shapes import FAMILIES
from ragtree_lab.gpu_proof.machine import Machine

LAYOUTS = ("BLHNC", "BLNHC", "LBNHC", "LBHNC", "K and V, blocks")

NEUTRAL = " with neutral pages"
"""Behind the name of a layout: its pages do not have the order of the device's memory."""

_NEUTRAL_LAYOUTS = (f"BLHNC{NEUTRAL}", f"LBNHC{NEUTRAL}")
TIERS = ("gpu", "host", "disk")
RUNNERS = {"V1": "0", "V2": "1"}
BACKENDS = ("FLASH_ATTN", "FLASHINFER")
BENCHMARKS = {"tiers": 200.0, "replay": 330.0}
"""Seconds that each may take on a GPU. A replay took 168 on an H200, and tries more rates on an unsteady machine."""

_FIXED_COSTS = "fixed costs"
_QUICK = (_FIXED_COSTS, "engine", *(f"engine {runner} FLASH_ATTN" for runner in RUNNERS))
"""The groups of the quick form, the most telling first."""

LARGE_GPU = 40 << 30
"""Bytes of a GPU that holds two engines with 7B parameters each."""

_FAMILIES = {"gemma3": "windows beside all tokens", "qwen3-next": "states", "llama in fp8": ""}
"""Models of ``ragtree bench families``, and what an older vLLM cannot keep of them."""

_GRAPHS = [1, 2, 4, 8]
"""The numbers of requests for which vLLM records CUDA graphs."""

_DECODE_GRAPHS = {
    "compilation_config": {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY", "cudagraph_capture_sizes": _GRAPHS}
}
"""Graphs of decoding without compilation, which would take a minute more for each engine of a large model."""

_CPU_PATIENCE = 3
"""How many times as long as on a GPU the checks may take on a CPU, which may have other work."""


class Check(msgspec.Struct, frozen=True):
    """One check: the method ``call`` of its group's class, with ``arguments``, within ``limit_s`` seconds.

    If a ``required`` check fails, the rest of its group is left out.
    """

    name: str
    call: str
    limit_s: float
    arguments: dict[str, Any] = {}
    required: bool = False


class Group(msgspec.Struct, frozen=True):
    """Checks of one process. ``kind`` names their class, which is made with ``settings``.

    The process has the variables ``environment``, and takes about ``start_s`` seconds until its first check runs.
    """

    name: str
    level: int
    kind: str
    settings: dict[str, Any]
    start_s: float
    checks: list[Check]
    environment: dict[str, str] = {}


def groups(
    machine: Machine, small: bool, levels: frozenset[int], only: str, cpu_python: str = "", *, quick: bool = False
) -> list[Group]:
    """The groups of some levels for a machine, with the checks whose name contains ``only``.

    The most telling come first. ``small`` is the form for a CPU. ``cpu_python`` is an interpreter with a vLLM for CPUs.
    The ``quick`` form has the fixed costs, and answers from every tier.
    """
    shape = "7b" if machine.gpu_bytes >= LARGE_GPU else "1b"
    every = [_blocks(small), *_engines(small), *_composing(small, shape), *_sharing(small, cpu_python)]
    every += [*_benchmarks(shape, small), *_families(small)]
    if quick:
        every = sorted((group for group in every if group.name in _QUICK), key=lambda group: _QUICK.index(group.name))
    patience = _CPU_PATIENCE if small else 1
    chosen = [
        msgspec.structs.replace(
            group,
            checks=[
                msgspec.structs.replace(check, limit_s=check.limit_s * patience)
                for check in group.checks
                if only in check.name
            ],
        )
        for group in every
        if group.level in levels
    ]
    return [group for group in chosen if group.checks]


def missing(group: Group, machine: Machine) -> str:
    """Why a group cannot run on a machine, or nothing if it can."""
    if group.level > 1 and not machine.has_vllm:
        return "vLLM is not installed"
    if group.settings.get("engine_args", {}).get("attention_backend") == "FLASHINFER" and not machine.has_flashinfer:
        return "FlashInfer is not installed"
    shape = group.settings.get("shape")
    if shape in _FAMILIES and _FAMILIES[shape] and not machine.serves_groups:
        return f"this vLLM lets no connector keep {_FAMILIES[shape]}"
    if group.settings.get("engine_args", {}).get("kv_cache_dtype") == "fp8" and not machine.computes_fp8:
        return "vLLM's kernels for FP8 need AVX-512"
    if group.kind == "sharing" and not group.settings["cpu_python"]:
        return "--cpu-python names no interpreter with vLLM for a CPU"
    return ""


def _blocks(small: bool) -> Group:
    checks = [
        Check(f"{title}, {layout}", call, 60, {"layout": layout})
        for call, title, layouts in (
            ("save_and_load", "save and load beside computing", (*LAYOUTS, *_NEUTRAL_LAYOUTS)),
            ("fence", "fence", LAYOUTS),
            ("bandwidth", "bandwidth", ("BLHNC", "LBNHC", *_NEUTRAL_LAYOUTS)),
        )
        for layout in layouts
    ]
    return Group("blocks", 1, "blocks", {"small": small}, 15, checks)


def _answers(title: str) -> list[Check]:
    return [
        Check(f"{title}: start", "start", 150, required=True),
        *(Check(f"{title}: KV from {tier}", "answers", 60, {"tier": tier}) for tier in TIERS),
    ]


def _faults(title: str) -> list[Check]:
    return [
        Check(f"{title}: pages lost in host memory", "lost_in_memory", 30),
        Check(f"{title}: file damaged on disk", "damaged_on_disk", 30),
        *(
            Check(f"{title}: failing load shared, {tier}", "shared_failing_load", 30, {"tier": tier})
            for tier in ("host", "disk")
        ),
        Check(f"{title}: preemption", "preemption", 60),
        Check(f"{title}: abort in mid-load", "abort", 60),
    ]


def _engines(small: bool) -> list[Group]:
    if small:
        settings = {"shape": "tiny", "dtype": "float32", "block_tokens": 32, "questions": 8, "engine_args": {}}
        return [Group("engine", 2, "engine", settings, 25, [*_answers("engine"), *_faults("engine")])]
    return [
        Group(
            f"engine {runner} {backend}",
            2,
            "engine",
            {
                "shape": "small",
                "dtype": "bfloat16",
                "block_tokens": 16,
                "questions": 8,
                "runner": runner,
                "engine_args": {
                    "attention_backend": backend,
                    "compilation_config": {"cudagraph_capture_sizes": _GRAPHS},
                },
            },
            30,
            [*_answers(f"{runner}, {backend}"), *_faults(f"{runner}, {backend}")],
            {"VLLM_USE_V2_MODEL_RUNNER": RUNNERS[runner]},
        )
        for backend in BACKENDS
        for runner in RUNNERS
    ] + [_neutral(runner) for runner in RUNNERS]


def _families(small: bool) -> list[Group]:
    """Engines of models whose layers keep something else than Llama's, beside each other or in other numbers."""
    return [
        Group(
            f"engine {name}",
            2,
            "engine",
            {
                "shape": name,
                "dtype": FAMILIES[name].dtype if small else "bfloat16",
                "block_tokens": 32 if small else 16,
                "questions": 8,
                # Each layer may be a group of blocks by itself.
                "cache_times": 4,
                "engine_args": {
                    **FAMILIES[name].engine_args,
                    **({} if small else {"compilation_config": {"cudagraph_capture_sizes": _GRAPHS}}),
                },
            },
            30,
            _answers(name),
        )
        for name in _FAMILIES
    ]


def _neutral(runner: str) -> Group:
    settings = {
        "shape": "small",
        "dtype": "bfloat16",
        "block_tokens": 16,
        "questions": 8,
        "runner": runner,
        "page_layout": "neutral",
        "engine_args": {"attention_backend": "FLASH_ATTN", "compilation_config": {"cudagraph_capture_sizes": _GRAPHS}},
    }
    environment = {"VLLM_USE_V2_MODEL_RUNNER": RUNNERS[runner]}
    return Group(
        f"engine {runner} neutral", 2, "engine", settings, 30, _answers(f"{runner}, neutral pages"), environment
    )


def _sharing(small: bool, cpu_python: str) -> list[Group]:
    """An engine on the CPU beside the one on the GPU. Without a GPU, both run on the CPU."""
    common = {"page_layout": "neutral", "block_tokens": 32, "cpu_python": cpu_python}
    start = Check("sharing: start", "start", 150, required=True)
    checks = [
        start,
        *(
            Check(f"sharing: {title}, {tier}", "loads", 60, {"saver": saver, "tier": tier})
            for saver, title in (("cpu", "KV of the CPU on the GPU"), ("gpu", "KV of the GPU on the CPU"))
            for tier in ("host", "disk")
        ),
        Check("sharing: the GPU composes KV of the CPU", "composes", 60, {"saver": "cpu"}),
    ]
    if small:
        settings = {"shape": "tiny", "dtype": "float32", "questions": 4, "engine_args": {}}
        return [Group("sharing", 2, "sharing", {**common, **settings}, 40, checks)]
    args = {"attention_backend": "FLASH_ATTN", **_DECODE_GRAPHS}
    settings = {"dtype": "bfloat16", "engine_args": args, **common}
    speeds = [Check("sharing, 1b: start", "start", 150, required=True)]
    speeds += [Check("sharing, 1b: KV of the CPU on the GPU", "loads", 90, {"saver": "cpu", "tier": "host"})]
    speeds += [Check("sharing, 1b: prefill speeds", "prefill_speeds", 90)]
    return [
        Group("sharing", 2, "sharing", {"shape": "small", "questions": 8, **settings}, 60, checks),
        Group("sharing, 1b", 3, "sharing", {"shape": "1b", "questions": 8, **settings}, 90, speeds),
    ]


def _composing(small: bool, shape: str) -> list[Group]:
    common: dict[str, Any] = {"documents": 4, "document_tokens": 250, "small": small, "host_gib": 0.25}
    if small:
        settings = {"shape": "one layer", "dtype": "float32", "block_tokens": 32, "rounds": 4, "engine_args": {}}
        checks = _composed("composing", "moved", "all_recomputed", "methods", "speed")
        return [Group("composing", 2, "composing", {**common, **settings}, 25, checks)]
    backend = {"attention_backend": "FLASH_ATTN"}
    common |= {"dtype": "bfloat16", "block_tokens": 16, "rounds": 12, "engine_args": backend}
    long = {"documents": 16, "document_tokens": 500, "rounds": 5, "host_gib": 6.0, "shape": shape}
    return [
        Group(
            "composing, one layer",
            2,
            "composing",
            {**common, "shape": "one layer"},
            30,
            _composed("composing, one layer", "moved"),
        ),
        *(
            Group(
                f"composing {runner}",
                2,
                "composing",
                {**common, "shape": "small", "runner": runner},
                30,
                _composed(f"composing {runner}", "all_recomputed", "methods"),
                {"VLLM_USE_V2_MODEL_RUNNER": number},
            )
            for runner, number in RUNNERS.items()
        ),
        Group(
            "composing",
            3,
            "composing",
            {**common, **long, "engine_args": {**backend, **_DECODE_GRAPHS}},
            30,
            _composed(f"composing, {shape}", "speed"),
        ),
    ]


def _composed(title: str, *calls: str) -> list[Check]:
    return [
        Check(f"{title}: start", "start", 150, required=True),
        *(Check(f"{title}: {call.replace('_', ' ')}", call, 120) for call in calls),
    ]


def _benchmarks(shape: str, small: bool) -> list[Group]:
    if small:
        settings = {"shape": "tiny", "dtype": "float32", "engine_args": {}, "small": True}
        return [
            Group("benchmarks", 3, "benchmarks", settings, 25, [Check(name, name, 300) for name in BENCHMARKS]),
            Group(_FIXED_COSTS, 3, "benchmarks", settings, 25, [Check(_FIXED_COSTS, "fixed_costs", 300)]),
        ]
    settings = {"shape": shape, "dtype": "bfloat16", "engine_args": _DECODE_GRAPHS}
    exact = {**settings, "block_tokens": 16, "questions": 24}
    return [
        Group("exactness", 3, "engine", exact, 30, _answers(f"exactness, {shape}")),
        *(
            Group(name, 3, "benchmarks", {**settings, "small": False}, 30, [Check(f"{name}, {shape}", name, limit_s)])
            for name, limit_s in BENCHMARKS.items()
        ),
        # A model that computes next to nothing.
        Group(
            _FIXED_COSTS,
            3,
            "benchmarks",
            {**settings, "shape": "small", "small": False},
            30,
            [Check(_FIXED_COSTS, "fixed_costs", 110)],
        ),
    ]
