"""Rounds of measurements: the same question with its prompt's KV in each tier, and bandwidths to compare with."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter
from uuid import uuid4

import numpy as np

from examine.measuring.engines import Generation, generate
from examine.measuring.kv_paths import KvPath, random_segment
from generator.engines.vllm_engine import VllmEngine
from protocol.errors import InternalError
from protocol.generation import Sampling
from protocol.kv import Move, Orders
from protocol.parts import Generator
from protocol.plans import PrefillPlan
from protocol.prompts import Segment, SegmentKind
from protocol.tiers import Tier

SYSTEM_TOKENS = 32
DISK_COLD = "disk cold"
SHORT_SAMPLES = 3
"""How often the fastest cases run in each round: a stray millisecond is 2 % of them."""


def round_segments(number: int, documents: int, document_tokens: int, block_tokens: int) -> tuple[Segment, ...]:
    """Return a round's own system prompt and documents, which fill whole blocks of ``block_tokens`` tokens."""
    least = SYSTEM_TOKENS + documents * document_tokens
    system = random_segment(f"system {number}", SYSTEM_TOKENS + -least % block_tokens, SegmentKind.SYSTEM)
    return (system, *(random_segment(f"document {number} {rank}", document_tokens) for rank in range(documents)))


async def plain_round(plain: VllmEngine, path: KvPath) -> dict[str, Generation]:
    """Return the first question after a prefix (``plain``), and a later one (``floor``), in vLLM without connector."""
    took = {"plain": await generate(plain, _new(path, "first", None, None), Sampling(1))}
    took["floor"] = await _median_of(plain, path, None)
    return took


async def caching_round(
    caching: VllmEngine, path: KvPath, tiers: Sequence[Tier], cool: Callable[[], bool] | None = None
) -> dict[str, Generation]:
    """Return a question by where its prefix's KV was: nowhere (``miss``), in the engine, then in each of ``tiers``.

    ``tiers`` are those below the engine, the fastest first. If ``cool`` takes the engine's
    files out of the operating system's memory, there is also a question whose prefix is on the disk alone (``disk
    cold``); it returns whether that worked. Raises InternalError if a tier did not have all KV.
    """
    took = {"miss": await _saving(caching, path, tiers[0] if tiers else Tier.GPU)}
    took[Tier.GPU] = _checked(await _median_of(caching, path, Tier.GPU), path, Tier.GPU)
    source = Tier.GPU
    for tier in tiers:
        await move(caching, path, source, tier)
        if tier is Tier.DISK and cool is not None and cool():
            took[DISK_COLD] = await _loaded(caching, path, tier)
            await forget(caching, path, (Tier.GPU,))
        took[tier] = await _loaded(caching, path, tier)
        source = tier
    await carried_out(caching, Orders(path.moves(source, None)))
    return took


async def move(engine: Generator, path: KvPath, source: Tier, target: Tier) -> None:
    """Move a path's KV from one tier to another, and leave it in no other one, nor in vLLM's own prefix cache."""
    await carried_out(engine, Orders(path.moves(source, target)))
    await forget(engine, path, (Tier.GPU,), path.moves(Tier.GPU, None) if source is not Tier.GPU else ())


async def carried_out(engine: Generator, orders: Orders) -> None:
    """Carry out orders. Raises InternalError if a copy could not be made."""
    lost = await engine.carry_out(orders)
    if lost:
        raise InternalError(f"{len(lost)} copies could not be made, the first in {lost[0].tier}")


async def forget(
    engine: Generator, path: KvPath, tiers: tuple[Tier, ...] = tuple(Tier), moves: tuple[Move, ...] = ()
) -> None:
    """Delete a path's KV from these tiers, after ``moves``: with the GPU, from vLLM's own prefix cache, too."""
    await carried_out(engine, Orders(moves, ((path.namespace, path.segments[0].key),), tiers=tiers))


def copy_rate(size: int) -> float:
    """Return bytes per second of a memory copy. Both buffers are touched before."""
    source, target = np.ones(size, np.uint8), np.full(size, 2, np.uint8)
    began = perf_counter()
    np.copyto(target, source)
    return size / (perf_counter() - began)


def read_rate(file: Path, size: int) -> float:
    """Return bytes per second of a file read from the file cache, into memory that was touched before."""
    file.write_bytes(os.urandom(1 << 20) * (size >> 20) + bytes(size % (1 << 20)))
    target = np.ones(size, np.uint8)
    with file.open("rb", buffering=0) as opened:
        began = perf_counter()
        read = opened.readinto(target.data)
        seconds = perf_counter() - began
    return (read or 0) / seconds


async def _median_of(engine: VllmEngine, path: KvPath, tier: Tier | None) -> Generation:
    """Return the median of several questions after KV that stays in place."""
    came = [await generate(engine, _new(path, "second", tier, tier), Sampling(1)) for _ in range(SHORT_SAMPLES)]
    return sorted(came, key=lambda generation: generation.ttft_ms)[SHORT_SAMPLES // 2]


async def _loaded(engine: VllmEngine, path: KvPath, tier: Tier) -> Generation:
    """Return a question whose prefix's KV comes from a tier below the engine, and stays there."""
    return _checked(await generate(engine, _new(path, "second", tier, None), Sampling(1)), path, tier)


def _checked(came: Generation, path: KvPath, tier: Tier) -> Generation:
    found = came.prefill.loaded.get(tier, 0)
    if found != path.tokens:
        raise InternalError(f"only {found} of {path.tokens} tokens came from {tier}")
    return came


async def _saving(engine: VllmEngine, path: KvPath, tier: Tier) -> Generation:
    """Run a miss whose KV goes to a tier meanwhile; then bring the KV into the GPU with another question."""
    came = await generate(engine, _new(path, "first", None, tier), Sampling(1))
    if tier is not Tier.GPU:
        await carried_out(engine, Orders(path.moves(tier, None)))
        await generate(engine, _new(path, "again", None, Tier.GPU), Sampling(1))
    return came


def _new(path: KvPath, question: str, source: Tier | None, kept: Tier | None) -> PrefillPlan:
    return path.plan(f"{question} {uuid4().hex}", source, kept)
