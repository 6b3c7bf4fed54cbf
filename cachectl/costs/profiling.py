"""Measures what prefills cost on an engine, once, and keeps it on disk."""

import math
import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from itertools import product
from pathlib import Path
from time import monotonic
from typing import Protocol

import anyio
import structlog
from filelock import AsyncFileLock

from cachectl.costs.device_profile import DeviceProfile
from cachectl.costs.prefill_grid import PrefillGrid, check_axis
from protocol.errors import ConfigError, InvalidRequest
from protocol.generation import EngineInfo, PrefillCost
from protocol.kv import KvMemory


class PrefillProbe(Protocol):
    """The part of an engine that can be profiled. It measures one prefill at a time."""

    async def probe_prefill(self, cached_tokens: int, new_tokens: int) -> PrefillCost:
        """Measure one prefill on arbitrary tokens. Raises InvalidRequest if both together exceed the context."""


async def profile(
    engine: PrefillProbe,
    cached: Sequence[int],
    new: Sequence[int],
    repeats: int,
    progress: Callable[[int, int], None],
    within_s: float = math.inf,
) -> PrefillGrid:
    """Measure the grid of an engine that is otherwise idle. Each point is the least of ``repeats`` probes: noise adds.

    Pairs are probed one at a time, shorter prompts first. Every pair is probed once before any is probed again, so a
    passing disturbance spoils few probes of many points and not all probes of one. At the first prompt that the engine
    refuses as too long, that pair and all longer ones are given up. Their points continue the differences of their
    measured neighbours: no request can reach them, but the cells that end there need a corner. A length that is refused
    even in its shortest pair is left out of the grid.

    Times that fall with more tokens are noise. Each time becomes the mean of two bounds: the greatest time for no
    more tokens of either kind, and the least time for no fewer. This is the isotonic regression in the maximum norm: no
    other repair has a smaller greatest change, and times that never fall stay unchanged.

    No round but the first begins after ``within_s`` seconds.

    ``progress`` is called after each probe with the number of probes done and to do; the latter shrinks when pairs are
    given up. Cancelling the call cancels the running probe and leaves nothing behind.

    Raises ConfigError for bad axes as ``PrefillGrid`` does, for ``new`` that begins at 0, for no repeats, and if fewer
    than two lengths of a kind fit the context. Also raises what the engine raises.
    """
    check_axis("cached", cached)
    check_axis("new", new)
    if new[0] == 0:
        raise ConfigError("a prefill of 0 new tokens cannot be measured; begin at 1 or more", "new")
    if repeats < 1:
        raise ConfigError(f"repeats must be at least 1, not {repeats}", "repeats")
    pairs = sorted(product(cached, new), key=sum)
    times: dict[tuple[int, int], list[float]] = {}
    done = 0
    began = monotonic()
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
        if monotonic() - began >= within_s:
            break
        for pair, measured in times.items():
            measured.append((await engine.probe_prefill(*pair)).seconds)
            done += 1
            progress(done, repeats * len(times))
    return _completed(_isotonic({pair: min(measured) for pair, measured in times.items()}))


def _isotonic(times: Mapping[tuple[int, int], float]) -> dict[tuple[int, int], float]:
    """Times that never fall with more tokens: the means of the least rising bounds above and below."""
    return {
        (cached, new): (
            max(time for (fewer, less), time in times.items() if fewer <= cached and less <= new)
            + min(time for (more, longer), time in times.items() if more >= cached and longer >= new)
        )
        / 2
        for cached, new in times
    }


def _completed(times: Mapping[tuple[int, int], float]) -> PrefillGrid:
    """The grid over times. Those of the longest prompts may be missing."""
    cached = tuple(sorted({pair[0] for pair in times}))
    new = tuple(sorted({pair[1] for pair in times}))
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
    return PrefillGrid(cached, new, tuple(map(tuple, table)))


# A shorter prompt costs as much as the pass itself.
_SHORTEST_PROBE = 32
# Engines cache whole blocks. A cached length that is a multiple of the usual block is cached as a whole.
_BLOCK_TOKENS = 16
# Five thousand tokens in all, including the cached ones, which are computed first: five seconds at 1 ms per token.
_QUICK_CACHED = (0, 1024)
_QUICK_NEW = (_SHORTEST_PROBE, 256, 768)


def quick_axes(max_model_len: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """A few cached and new tokens to profile a model at, those that fit the context; at least two on each axis.

    Raises ConfigError for a context too short to profile.
    """
    if max_model_len <= 2 * _SHORTEST_PROBE:
        raise ConfigError(f"a context of {max_model_len} tokens is too short to profile", "max_model_len")
    longest = max_model_len - 1
    most_cached = (longest - _SHORTEST_PROBE) // _BLOCK_TOKENS * _BLOCK_TOKENS
    return _clipped(_QUICK_CACHED, most_cached), _clipped(_QUICK_NEW, longest)


def _clipped(points: Sequence[int], last: int) -> tuple[int, ...]:
    fitting = [point for point in points if point <= last]
    return tuple(fitting) if len(fitting) > 1 else (points[0], last)


_log = structlog.get_logger(__name__)

# The rate of a tier that does not exist: so slow that nothing is ever loaded from it.
_NO_RATE = 1.0

_REPEATS = 2
_LONGEST_S = 15.0
"""Where the first round takes so long, the start does not wait for another one."""
# How far a prefill may be from its stored time. Engines on one machine differ by less, and a disturbed probe by more.
_TOLERANCE = 1.5


async def load_or_measure(
    engine: PrefillProbe,
    memory: KvMemory,
    info: EngineInfo,
    folder: Path,
    progress: Callable[[int, int], None],
) -> DeviceProfile:
    """The profile of an engine, measured once for each fingerprint, device and step length, and kept in ``folder``.

    Prefill times are read from the folder. If there is no file or a broken one, or if the engine contradicts it, they
    are measured at a few lengths that fit the engine's context, which takes some seconds; ``progress`` is then called
    with the number of probes done and to do. Processes that share the folder measure one after another, so that only
    the first one has to. The rates of loads are always those of ``memory``. Raises ConfigError for a context too short
    to profile, and what the engine raises.
    """
    steps = f"{info.step.tokens} {info.step.prompt_tokens}" if info.step is not None else ""
    words = re.findall(r"[a-z0-9]+", f"{memory.device} {steps}".lower())
    path = folder / f"{'-'.join([memory.fingerprint, *words])}.json"
    async with _one_at_a_time(folder):
        grid = _stored_grid(path)
        measured = grid is None or not await _holds(grid, engine)
        if grid is None or measured:
            grid = await profile(engine, *quick_axes(info.max_model_len), _REPEATS, progress, _LONGEST_S)
        device = DeviceProfile(
            name=memory.fingerprint,
            source="measured when the engine started",
            host_bytes_per_s=memory.host_bytes_per_s or _NO_RATE,
            disk_bytes_per_s=memory.disk_bytes_per_s or _NO_RATE,
            kv_bytes_per_token=memory.page_bytes // memory.page_tokens,
            grid=grid,
        )
        if measured:
            _store(device, path)
        return device


async def _holds(grid: PrefillGrid, engine: PrefillProbe) -> bool:
    """Whether the engine still prefills as fast as the grid says.

    The grid may come from another machine, or from a start while other work ran beside it.
    """
    stored = grid.points[0][1]
    for _ in range(_REPEATS):
        seconds = (await engine.probe_prefill(grid.cached[0], grid.new[1])).seconds
        if stored / _TOLERANCE <= seconds <= stored * _TOLERANCE:
            return True
    _log.info("the engine is profiled again", stored_ms=round(stored * 1000), measured_ms=round(seconds * 1000))
    return False


def _stored_grid(path: Path) -> PrefillGrid | None:
    if not path.exists():
        return None
    try:
        return DeviceProfile.load(path).grid
    except ConfigError as error:
        _log.warning("the stored profile is broken; the engine is profiled again", reason=str(error))
        return None


def _store(device: DeviceProfile, path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        device.save(path)
    except OSError as error:
        _log.warning("the profile could not be saved; the next start measures it again", reason=str(error))


@asynccontextmanager
async def _one_at_a_time(folder: Path) -> AsyncIterator[None]:
    """Hold a lock on a folder that the processes share, which ends with the process.

    Two that measure the same engine at once disturb each other.
    """
    async with AsyncExitStack() as held:
        # Where nothing can be kept, others have to measure in any case.
        with suppress(OSError):
            await anyio.Path(folder).mkdir(parents=True, exist_ok=True)
            await held.enter_async_context(AsyncFileLock(folder / "lock", mode=0o600))
        yield
