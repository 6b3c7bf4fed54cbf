"""The profiles of engines, kept on disk from their first start on."""

import asyncio
import fcntl
import os
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import structlog

from cachectl.costs.cost_grid import CostGrid
from cachectl.costs.device_profile import DeviceProfile
from cachectl.costs.profiling import PrefillProbe, profile, quick_axes
from protocol.errors import ConfigError
from protocol.generation import EngineInfo
from protocol.kv import KvMemory

_log = structlog.get_logger(__name__)

# The rate of a tier that does not exist: so slow that nothing is ever loaded from it.
_NO_RATE = 1.0

_REPEATS = 2
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
    path = folder / f"{memory.fingerprint}{_suffix(f'{memory.device} {steps}')}.json"
    async with one_at_a_time(folder):
        grid = _stored_grid(path)
        measured = grid is None or not await _holds(grid, engine)
        if grid is None or measured:
            grid = await profile(engine, *quick_axes(info.max_model_len), _REPEATS, progress)
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


async def _holds(grid: CostGrid, engine: PrefillProbe) -> bool:
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


def _suffix(text: str) -> str:
    """A device and its steps as part of a file name."""
    return "".join(f"-{word}" for word in re.findall(r"[a-z0-9]+", text.lower()))


def _stored_grid(path: Path) -> CostGrid | None:
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
async def one_at_a_time(folder: Path) -> AsyncIterator[None]:
    """Hold a lock on a folder that the processes share, which ends with the process. Without a folder, hold none."""
    descriptor = _opened(folder)
    if descriptor is None:
        # Nothing can be kept there, so others have to measure in any case.
        yield
        return
    try:
        await asyncio.to_thread(fcntl.flock, descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _opened(folder: Path) -> int | None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    except OSError:
        return None
