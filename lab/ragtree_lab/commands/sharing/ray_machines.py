"""Two machines on this one: two Ray nodes, each with a folder and engines of its own."""

import os
import signal
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO, NamedTuple

import psutil
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from examine.signals import undisturbed_by_signals
from protocol.errors import Unavailable
from ragtree_lab.commands.sharing.engine_actor import ActorCaller, EngineActor, engine_handle
from ragtree_lab.measuring.engines import ComparedEngines
from ragtree_lab.sharing.machines import TimedEngine
from services.cluster.first_machine import OBJECT_STORE_BYTES
from services.cluster.member import start_node
from services.stack.run_state import await_end, end_family, end_of

_STARTS = 3
"""How often the second node is started at most. Ray gives a node 30 s, which a busy machine may exceed."""
_JOINED_S = 60.0
"""How long a start of the second node may take until it belongs to the cluster."""
_LEAVE_S = 10.0
"""How long it may take to end before it is killed."""
_POLL_S = 0.1
_FIRST, _SECOND = "machine-0", "machine-1"
_ADDRESSES = {_FIRST: "127.0.0.2", _SECOND: "127.0.0.3"}
"""Ray would replace 127.0.0.1 by the address at which other machines reach this one."""


class _Machine(NamedTuple):
    """One of the machines: the id of its Ray node, and the folder of its engines."""

    node_id: str
    folder: Path


class RayMachines:
    """Two Ray nodes on this machine, over loopback. Implements ``Machines``. Create it with ``running``."""

    def __init__(self, folder: Path, machines: tuple[_Machine, ...], ended: ExitStack) -> None:
        """``folder`` is for temporary files. ``ended`` is closed once all processes of the machines are gone."""
        self._folder = folder
        self._machines = machines
        self._ended = ended

    @classmethod
    @contextmanager
    def running(cls) -> Iterator["RayMachines"]:
        """Start the nodes. At the end they leave no process, no file and no host memory behind.

        Raises Unavailable if the second one does not join the first one, however often it is started.
        """
        # The name is short, because sockets lie deep below it.
        with TemporaryDirectory(prefix="ragtree-") as name, ExitStack() as ended, _no_process_left():
            folder = Path(name)
            _start_first(folder)
            first = ray.get_runtime_context().get_node_id()
            with _second_node(folder / f"{_SECOND}.log") as second:
                machines = (_Machine(first, folder / _FIRST), _Machine(second, folder / _SECOND))
                yield cls(folder, machines, ended)

    @asynccontextmanager
    async def engine(
        self,
        number: int,
        maker: ComparedEngines,
        instance: str,
        at_work: int = 1,
        **kv: Any,  # noqa: ANN401
    ) -> AsyncGenerator[TimedEngine]:
        """Run an engine in an actor on a machine's node."""
        machine = self._machines[number]
        folder = machine.folder / instance
        # An engine whose process is killed does not free it.
        self._ended.callback(maker.kv_settings(disk_dir=folder, **kv).discard_host_memory)
        actor = (
            ray.remote(EngineActor)
            .options(
                num_cpus=0,
                scheduling_strategy=NodeAffinitySchedulingStrategy(machine.node_id, soft=False),
                runtime_env={"env_vars": self._environment(maker.threads(at_work))},
            )
            .remote(maker, folder, instance, {"at_work": at_work, **kv})
        )
        caller = ActorCaller(actor)
        await caller.call("start")
        try:
            yield engine_handle(caller)
        finally:
            await caller.call("close")
            ray.kill(actor)

    def _environment(self, threads: int) -> dict[str, str]:
        return {
            # Ray would give an actor without CPUs one thread.
            "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(threads)),
            # vLLM does not delete its sockets.
            "TMPDIR": str(self._folder),
        }


@contextmanager
def _no_process_left() -> Iterator[None]:
    """End Ray at the end, and whatever runs below this process and did not before."""
    before = set(psutil.Process().children(recursive=True))
    try:
        yield
    finally:
        with undisturbed_by_signals():
            # Once their parents are gone, they are nobody's children.
            family = set(psutil.Process().children(recursive=True)) - before
            ray.shutdown()
            await_end(family)


def _start_first(folder: Path) -> None:
    ending = signal.getsignal(signal.SIGTERM)
    ray.init(
        address="local",
        include_dashboard=False,
        # Nothing reserves any. Ray starts a worker for each.
        num_cpus=0,
        object_store_memory=OBJECT_STORE_BYTES,
        log_to_driver=False,
        logging_level="WARNING",
        _node_ip_address=_ADDRESSES[_FIRST],
        _node_name=_FIRST,
        # In its usual folder, Ray would tell other commands that this is the Ray of this machine. It opens its folder
        # to all users, so it gets one inside of ours.
        _temp_dir=str(folder / "r"),
    )
    # Ray has installed its own.
    signal.signal(signal.SIGTERM, ending)


@contextmanager
def _second_node(log: Path) -> Iterator[str]:
    """Start the second node until it joins, and end it. Gives its id. Raises Unavailable after ``_STARTS`` failures."""
    with log.open("wb") as output:
        for _ in range(_STARTS):
            with _started_node(output) as node_id:
                if node_id is not None:
                    yield node_id
                    return
    raise Unavailable(f"the second Ray node did not start:\n{end_of(log)}")


@contextmanager
def _started_node(output: BinaryIO) -> Iterator[str | None]:
    """Start the second node once, and end it. Gives its id, or None if it has not joined the first one."""
    # By default, both would want the same ports.
    ports = ("--min-worker-port", "0", "--max-worker-port", "0", "--dashboard-agent-listen-port", "0")
    head = ray.get_runtime_context().gcs_address
    # A node that has just ended may still count as alive.
    before = _alive()
    node = start_node(head, _ADDRESSES[_SECOND], _SECOND, output, "--num-cpus", "0", *ports, environment={})
    try:
        deadline = time.monotonic() + _JOINED_S
        while not (joined := _alive() - before) and node.poll() is None and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        yield next(iter(joined), None)
    finally:
        with undisturbed_by_signals():
            if node.poll() is None:
                end_family(psutil.Process(node.pid), _LEAVE_S)


def _alive() -> set[str]:
    """The ids of the nodes that belong to the cluster."""
    return {node["NodeID"] for node in ray.nodes() if node["Alive"]}
