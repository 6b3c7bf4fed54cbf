"""Measuring what prefills cost: the grid of an engine, and the profile that is kept from its first start on."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from pathlib import Path
from statistics import median
from typing import Protocol

import structlog

from cachectl.costs.device_profile import CostGrid, DeviceProfile, check_axis
from protocol.errors import ConfigError, InvalidRequest
from protocol.generation import EngineInfo, PrefillCost
from protocol.kv import KvMemory

_log = structlog.get_logger(__name__)

# Shorter prompts than this cost what a pass costs, whatever is in them.
_SHORTEST_PROBE = 32
# Engines cache whole blocks; a cached length that is a multiple of the usual block is really cached as a whole.
_BLOCK_TOKENS = 16
# Five thousand tokens in all, cached ones being computed first: five seconds where a token takes a millisecond.
_QUICK_CACHED = (0, 1024)
_QUICK_NEW = (_SHORTEST_PROBE, 256, 768)
# Where there is nothing to load from: so slow that nothing ever is.
_NO_RATE = 1.0


class PrefillProbe(Protocol):
    """The part of an engine that can be profiled: it measures one prefill at a time."""

    async def probe_prefill(self, cached_tokens: int, new_tokens: int) -> PrefillCost:
        """Measure one prefill on arbitrary tokens. Raises InvalidRequest where both together exceed the context."""


async def profile(
    engine: PrefillProbe,
    cached: Sequence[int],
    new: Sequence[int],
    repeats: int,
    progress: Callable[[int, int], None],
) -> CostGrid:
    """The grid of an engine, each point the median of ``repeats`` probes; the engine should have nothing else to do.

    Pairs are probed one at a time, shorter prompts first, and all of them before any is probed again, so a passing
    disturbance spoils few probes of many points rather than all of one. At the first prompt that the engine refuses as
    too long, it and the pairs behind it are given up. Their points continue the differences of their measured
    neighbours: no request can reach them, but the cells that end there need a corner. A length refused even in its
    shortest pair is left out of the grid.

    Medians that fall with more tokens are noise. Each time becomes the mean of the most measured for no more and the
    least for no fewer tokens of either kind. That is the isotonic regression in the maximum norm: no other repair has a
    smaller greatest change, and where nothing fell nothing changes.

    ``progress`` hears probes done and to do after each probe; the latter shrink where pairs are given up. Cancelling
    cancels the probe that runs, and nothing is left behind. Raises ConfigError for axes as ``CostGrid`` does, for
    ``new`` that begins at 0, for no repeats, and where fewer than two lengths of a kind fit the context. Else raises
    what the engine raises.
    """
    check_axis("cached", cached)
    check_axis("new", new)
    if new[0] == 0:
        raise ConfigError("a prefill of no new tokens cannot be measured", "new")
    if repeats < 1:
        raise ConfigError(f"a point takes one probe or more, not {repeats}", "repeats")
    pairs = sorted(product(cached, new), key=sum)
    times: dict[tuple[int, int], list[float]] = {}
    done = 0
    for pair in pairs:
        try:
            cost = await engine.probe_prefill(*pair)
        except InvalidRequest as refusal:
            if min(len({lengths[i] for lengths in times}) for i in range(2)) < 2:
                tokens = f"{pair[0]} cached and {pair[1]} new tokens"
                raise ConfigError(f"too few lengths fit the engine, which refuses {tokens}: {refusal}") from refusal
            progress(done, repeats * len(times))
            break
        times[pair] = [cost.seconds]
        done += 1
        progress(done, repeats * len(pairs))
    for _ in range(repeats - 1):
        for pair, measured in times.items():
            measured.append((await engine.probe_prefill(*pair)).seconds)
            done += 1
            progress(done, repeats * len(times))
    return _completed(_isotonic({pair: median(measured) for pair, measured in times.items()}))


def default_axes(max_model_len: int, ratio: float = 2.0) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The cached and new tokens to profile a model at: geometric points up to the longest prompt it can answer.

    ``max_model_len`` counts prompt and answer; each point is ``ratio`` times the one before, rounded to whole blocks of
    KV. Pairs that exceed the context together are among them; ``profile`` knows how to do without. Raises ConfigError
    for a context too short to profile, and for a ratio that does not exceed 1.
    """
    if max_model_len <= 2 * _SHORTEST_PROBE:
        raise ConfigError(f"a context of {max_model_len} tokens is too short to profile", "max_model_len")
    if not ratio > 1:
        raise ConfigError(f"the ratio between points must exceed 1, not be {ratio}", "ratio")
    longest = max_model_len - 1
    most_cached = (longest - _SHORTEST_PROBE) // _BLOCK_TOKENS * _BLOCK_TOKENS
    return (0, *_geometric(_SHORTEST_PROBE, most_cached, ratio)), _geometric(_SHORTEST_PROBE, longest, ratio)


def _geometric(first: int, last: int, ratio: float) -> tuple[int, ...]:
    points = {first, last}
    point = first * ratio
    # The last gap may be wider or narrower than the others by half of one, but never a sliver.
    while point * math.sqrt(ratio) <= last:
        points.add(round(point / _BLOCK_TOKENS) * _BLOCK_TOKENS)
        point *= ratio
    return tuple(sorted(points))


async def load_or_measure(
    engine: PrefillProbe,
    memory: KvMemory,
    info: EngineInfo,
    folder: Path,
    progress: Callable[[int, int], None],
) -> DeviceProfile:
    """The profile of an engine, measured once for each fingerprint, device and length of steps, and kept in ``folder``.

    Prefill times are read from there, or measured at a few lengths that fit the engine's context, in some seconds; a
    file that is broken is measured anew. What loads cost is what ``memory`` says now. ``progress`` hears probes done
    and to do. Raises ConfigError for a context too short to profile; else what the engine raises.
    """
    steps = f"{info.step.tokens} {info.step.prompt_tokens}" if info.step is not None else ""
    path = folder / f"{memory.fingerprint}{_named(f'{memory.device} {steps}')}.json"
    grid = _kept_grid(path)
    measured = grid is None
    if grid is None:
        grid = await profile(engine, *quick_axes(info.max_model_len), 1, progress)
    device = DeviceProfile(
        name=memory.fingerprint,
        source="measured when the engine started",
        host_bytes_per_s=memory.host_bytes_per_s or _NO_RATE,
        disk_bytes_per_s=memory.disk_bytes_per_s or _NO_RATE,
        kv_bytes_per_token=memory.page_bytes // memory.page_tokens,
        grid=grid,
    )
    if measured:
        _keep(device, path)
    return device


def _named(text: str) -> str:
    """What was measured on as a part of a file's name."""
    return "".join(f"-{word}" for word in re.findall(r"[a-z0-9]+", text.lower()))


def quick_axes(max_model_len: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """A few cached and new tokens to profile a model at, as far as they fit a context, each axis two at least.

    Raises ConfigError for a context too short to profile.
    """
    cached, new = default_axes(max_model_len)
    return _clipped(_QUICK_CACHED, cached[-1]), _clipped(_QUICK_NEW, new[-1])


def _clipped(points: Sequence[int], last: int) -> tuple[int, ...]:
    fitting = [point for point in points if point <= last]
    return tuple(fitting) if len(fitting) > 1 else (points[0], last)


def _kept_grid(path: Path) -> CostGrid | None:
    if not path.exists():
        return None
    try:
        return DeviceProfile.load(path).grid
    except ConfigError as error:
        _log.warning("the engine is profiled anew", reason=str(error))
        return None


def _keep(device: DeviceProfile, path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        device.save(path)
    except OSError as error:
        _log.warning("the engine's profile could not be saved and will be measured again", reason=str(error))


def _isotonic(times: Mapping[tuple[int, int], float]) -> dict[tuple[int, int], float]:
    """Times that never fall with more tokens: halfway between the least rising bounds above and below."""
    return {
        (cached, new): (
            max(time for (fewer, less), time in times.items() if fewer <= cached and less <= new)
            + min(time for (more, longer), time in times.items() if more >= cached and longer >= new)
        )
        / 2
        for cached, new in times
    }


def _completed(times: Mapping[tuple[int, int], float]) -> CostGrid:
    """The grid over times of which those of the longest prompts may be missing."""
    cached = sorted({pair[0] for pair in times})
    new = sorted({pair[1] for pair in times})
    table: list[list[float]] = []
    for i, row in enumerate(cached):
        table.append([])
        for j, column in enumerate(new):
            time = times.get((row, column))
            if time is None:
                # The first row and column are complete: each length was measured in its shortest pair.
                beside, below, before = table[i][j - 1], table[i - 1][j], table[i - 1][j - 1]
                time = max(beside, below + (beside - before))
            table[i].append(time)
    return CostGrid(cached, new, table)
