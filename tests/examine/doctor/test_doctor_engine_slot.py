"""Starts of engines that fail, with a maker of engines that is a fake, and the small engine beside other work."""

from contextlib import asynccontextmanager

import pytest

from examine.doctor.context import reduced
from examine.doctor.engine_slot import EngineLog, EngineSlot
from generator.settings import GeneratorSettings
from protocol.errors import ConfigError, InternalError

TAKEN = (
    "vLLM cannot run 'm': Free memory on device cuda:0 (3.1/139.0 GiB) on startup is less than desired GPU memory "
    "utilization (0.9, 125.1 GiB)."
)
ELSEWHERE = "vLLM cannot run 'm': Engine core initialization failed. See root cause above. Failed core proc(s): {}"
REFUSED = "RAGTree's connector does not support a KV cache of fp8"


class FakeEngineMaker:
    """Makes engines that are only names. ``error`` is raised at a start, after ``printed`` went to the log."""

    def __init__(self, path, error: str | None = None, printed: str = "") -> None:
        self._path = path
        self._error = error
        self._printed = printed
        self.events: list[str] = []

    @asynccontextmanager
    async def plain(self):
        async with self._running("plain") as engine:
            yield engine

    @asynccontextmanager
    async def caching(self, folder, keep_host, **kv):
        assert keep_host
        async with self._running(f"caching {folder.name} {kv}") as engine:
            yield engine

    @asynccontextmanager
    async def _running(self, name):
        if self._error is not None:
            with self._path.open("a") as file:
                file.write(self._printed)
            raise ConfigError(self._error)
        self.events.append(f"{name} starts")
        yield name
        self.events.append(f"{name} ends")


def slot(tmp_path, **fake):
    maker = FakeEngineMaker(tmp_path / "log", **fake)
    return EngineSlot(maker, tmp_path / "kv", {"host_gib": 1}, EngineLog(tmp_path / "log")), maker


async def test_one_engine_runs_at_a_time(tmp_path):
    engines, maker = slot(tmp_path)
    with pytest.raises(InternalError, match="no engine is running"):
        _ = engines.running
    assert await engines.start_plain() == engines.running == "plain"
    caching = await engines.start_caching()
    assert caching == engines.running == "caching kv {'host_gib': 1}"
    await engines.close()
    await engines.close()
    assert maker.events == ["plain starts", "plain ends", f"{caching} starts", f"{caching} ends"]


@pytest.mark.parametrize(
    ("error", "printed", "why"),
    [
        (TAKEN, "ValueError: something that did no harm\n", TAKEN),
        (ELSEWHERE, f"protocol.errors.ConfigError: {REFUSED}\n", REFUSED),
        (
            ELSEWHERE,
            "(EngineCore pid=7) ValueError: Free memory on device cuda:0 is less than desired\n",
            "vLLM does not start: ValueError: Free memory on device cuda:0 is less than desired",
        ),
    ],
    ids=["device taken", "connector refuses", "device taken, in the engine's process"],
)
async def test_a_start_that_fails_says_why(tmp_path, error, printed, why):
    (tmp_path / "log").write_text("ValueError: of an earlier engine\n")
    engines, _ = slot(tmp_path, error=error, printed=printed)
    with pytest.raises(ConfigError) as raised:
        await engines.start_caching()
    assert str(raised.value) == why
    with pytest.raises(InternalError):
        _ = engines.running


@pytest.mark.parametrize(
    ("given", "length", "blocks"),
    [({}, 8192, 257), ({}, 1024, 256), ({"block_size": 16}, 8192, 513), ({"num_gpu_blocks_override": 9}, 8192, 9)],
)
def test_an_engine_beside_other_work_has_room_for_the_longest_prompt(monkeypatch, given, length, blocks):
    monkeypatch.setattr("examine.doctor.context.has_gpu", lambda: False)
    small = reduced(GeneratorSettings(engine_args=given), length)
    assert small.engine_args["num_gpu_blocks_override"] == blocks


def test_an_engine_beside_a_stack_takes_what_that_leaves_of_the_gpu(monkeypatch):
    monkeypatch.setattr("examine.doctor.context.has_gpu", lambda: True)
    for share, left in ((0.5, 0.45), (0.95, 0.05)):
        settings = GeneratorSettings(engine_args={"gpu_memory_utilization": share})
        assert reduced(settings, 8192).gpu_memory_utilization == pytest.approx(left)
