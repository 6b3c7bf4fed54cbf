"""Two Ray nodes with a tiny model: engines of their own read each other's KV, and nothing of them stays."""

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from processes import descendants, engines_under
from tiny_models import llama, make_tiny_model

from cachectl.settings import ControllerSettings
from generator.models import ModelStore
from generator.settings import GeneratorSettings, KvSettings
from protocol.errors import Unavailable
from ragtree_lab.commands.sharing import ray_machines
from ragtree_lab.commands.sharing.ray_machines import RayMachines
from ragtree_lab.measuring.engines import ComparedEngines
from ragtree_lab.sharing.benchmark import NAMES
from ragtree_lab.sharing.first_tokens import FirstTokenRounds
from ragtree_lab.sharing.load import Load
from ragtree_lab.sharing.machines import engines_on
from ragtree_lab.sharing.peer_settings import sharing_peers
from ragtree_lab.sharing.throughput import Point, ThroughputTurns
from services.cluster.member import start_node

pytestmark = [pytest.mark.ray, pytest.mark.vllm, pytest.mark.prove("lab/ragtree_lab/sharing/", "generator/peers/")]

LOAD = Load(documents=4, document_tokens=64, clients=2, queries=4, turns=1, answer_tokens=2, hot_share=0.229)
KNOWN_RAY = Path("/tmp/ray/ray_current_cluster")
"""Where Ray's commands look for the address of this machine's Ray, unless they are told one."""
START_S = 300.0
END_S = 60.0


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("tiny-model"), llama())


@pytest.fixture
def places(monkeypatch) -> Iterator[Path]:
    """Empty places for temporary files and host memory. Their path is short, because sockets are among them."""
    with tempfile.TemporaryDirectory(prefix="ray-") as name:
        for place in ("tmp", "host"):
            (Path(name) / place).mkdir()
        monkeypatch.setenv("TMPDIR", str(Path(name) / "tmp"))
        monkeypatch.setattr(tempfile, "tempdir", None)
        yield Path(name)


def left(places: Path) -> list[str]:
    return [str(file) for name in ("tmp", "host") for file in (places / name).iterdir()]


def known_ray() -> str | None:
    return KNOWN_RAY.read_text() if KNOWN_RAY.exists() else None


def raylet_above(process: psutil.Process) -> psutil.Process:
    return next(parent for parent in process.parents() if parent.name() == "raylet")


def test_engines_on_two_nodes_read_each_other(places, model):
    settings = GeneratorSettings(
        model=str(model), max_model_len=512, dtype="float32", kv=KvSettings(host_dir=places / "host", disk_gib=0)
    )
    maker = ComparedEngines(settings, ModelStore(places / "cache"), at_once=2, kv_tokens=512)
    before, known = set(psutil.Process().children(recursive=True)), known_ray()

    async def measured(machines: RayMachines) -> None:
        peers = sharing_peers(places)
        async with engines_on(machines, maker, NAMES, at_work=2, peers=peers, host_gib=0.01) as engines:
            infos = [(await engine.info()).kv for engine in engines.values()]
            assert len({info.shared for info in infos}) == len({info.boot for info in infos}) == 2
            assert len({raylet_above(engine).pid for engine in engines_under(psutil.Process()) - before}) == 2
            # It checks where each prompt's KV came from.
            (row,) = await FirstTokenRounds([64], 1).run(engines, lambda *_: None)
            assert row.remote_bytes_per_s > 0
            throughput = ThroughputTurns(
                ControllerSettings(), places / "profiles", LOAD, ["alone", "generator"], [Point(1, 0.0), Point(2, 0.1)]
            )
            one, two = await throughput.run(engines, 1, lambda *_: None)
            for point in (one, two):
                # Few documents that fit.
                assert point.ways["alone"].token_hit_rate > 0.3
                assert point.ways["alone"].peer_rate == 0
                assert point.generator_over_alone > 0

    with RayMachines.running() as machines:
        asyncio.run(measured(machines))
    assert set(psutil.Process().children(recursive=True)) - before == set()
    assert left(places) == []
    assert known_ray() == known


def test_a_node_that_ends_while_it_starts_is_started_again(places, monkeypatch):
    started: list[psutil.Process] = []

    def start(*arguments: Any, **options: Any) -> subprocess.Popen[bytes]:
        node = start_node(*arguments, **options)
        started.append(psutil.Process(node.pid))
        if len(started) == 1:
            node.kill()
        return node

    monkeypatch.setattr(ray_machines, "start_node", start)
    with RayMachines.running():
        assert [process.is_running() for process in started] == [False, True]
    assert not started[1].is_running()
    assert left(places) == []


def test_a_node_that_never_starts_is_given_up_with_its_log(places, monkeypatch):
    def start(*arguments: Any, **options: Any) -> subprocess.Popen[bytes]:
        return start_node(*arguments, "--no-such-option", **options)

    monkeypatch.setattr(ray_machines, "start_node", start)
    with pytest.raises(Unavailable, match="no-such-option"), RayMachines.running():
        pass
    assert left(places) == []


def test_ctrl_c_while_engines_start_leaves_nothing_behind(places, model):
    environment = {
        **os.environ,
        "RAGTREE_CACHE_DIR": str(places / "cache"),
        "RAGTREE_GENERATOR__MODEL": str(model),
        "RAGTREE_GENERATOR__MAX_MODEL_LEN": "512",
        "RAGTREE_GENERATOR__KV__HOST_DIR": str(places / "host"),
    }
    known = known_ray()
    command = [sys.executable, "-m", "services.cli", "bench", "sharing", "--tokens", "64", "--kv-tokens", "512"]
    running = psutil.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    family: list[psutil.Process] = []
    try:
        deadline = time.monotonic() + START_S
        while not descendants(running, "EngineActor.start"):
            assert running.poll() is None, running.stdout.read()
            assert time.monotonic() < deadline, "no engine starts"
            time.sleep(0.05)
        family = running.children(recursive=True)
        running.send_signal(signal.SIGINT)
        assert running.wait(END_S) == 130, running.stdout.read()
        assert [process for process in family if process.is_running()] == []
    finally:
        for process in (running, *family):
            if process.is_running():
                process.kill()
    assert left(places) == []
    assert known_ray() == known
