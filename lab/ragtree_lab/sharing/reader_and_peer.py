"""Two machines: one gets all queries, and reads the documents' KV at the other one, its peer."""

import time
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from cachectl.runtime.executor import LiveEngine
from cachectl.runtime.live_controller import LiveController
from cachectl.settings import ControllerSettings, Swap
from examine.measuring.engines import Generation
from generator.engines.vllm_engine import VllmEngine
from protocol.generation import Sampling
from protocol.kv import KvMemory
from protocol.prompts import Prompt
from ragtree_lab.measuring.engines import ComparedEngines
from ragtree_lab.measuring.fixed_instances import FixedInstances
from ragtree_lab.measuring.local_stack import LocalStack
from ragtree_lab.sharing.peer_settings import sharing_peers
from ragtree_lab.sharing.readdressed_engine import ReaddressedEngine
from ragtree_lab.sharing.relay import Relay
from ragtree_lab.sharing.serving_machine import ServingMachine

_READER = "reader"


class ReaderAndPeer:
    """One controller over the reader and its ``peer``, with a ``relay`` between them. Create it with ``running``.

    The reader has no memory and no disk for KV. So it keeps little of what it has read, and reads again.
    """

    def __init__(
        self,
        stack: LocalStack,
        live: LiveController,
        engines: dict[str, VllmEngine],
        seen: dict[str, LiveEngine],
        peer: ServingMachine,
        relay: Relay,
        memory: KvMemory,
    ) -> None:
        """``engines`` execute plans, and the controller has ``seen`` them. ``memory`` is that of the reader."""
        self.stack = stack
        self.peer = peer
        self.relay = relay
        self.memory = memory
        self._live = live
        self._engines = engines
        self._seen = seen

    @classmethod
    @asynccontextmanager
    async def running(
        cls, engines: ComparedEngines, controller: ControllerSettings, profiles: Path, host_gib: float
    ) -> "AsyncGenerator[ReaderAndPeer]":
        """Start both machines. The peer has ``host_gib`` GiB of memory for KV. Raises what the engines raise."""
        async with AsyncExitStack() as stack:
            folder = Path(stack.enter_context(TemporaryDirectory(prefix="ragtree-bench-")))
            peers = sharing_peers(folder)
            reader = await stack.enter_async_context(
                engines.caching(folder / _READER, instance=_READER, peers=peers, host_gib=0, disk_gib=0)
            )
            peer = await stack.enter_async_context(
                ServingMachine.running(engines, folder / "peer", peers, host_gib=host_gib, disk_gib=0)
            )
            relay = await stack.enter_async_context(Relay.opened(peer.address))
            running: dict[str, VllmEngine] = {_READER: reader}
            seen: dict[str, LiveEngine] = {_READER: reader}
            # What the peer computes must be in its memory at once, for the reader to find it there.
            settings = controller.model_copy(update={"swap": Swap.WRITE_THROUGH})
            live = LiveController(settings, FixedInstances(seen), profiles, time.monotonic, time.time)
            await live.start(lambda *_: None)
            memory = (await reader.info()).kv
            assert memory is not None, "it has peers"
            pair = cls(LocalStack(live, running), live, running, seen, peer, relay, memory)
            await pair._peer_joins()
            yield pair

    async def ask(self, prompt: Prompt, namespace: str, sampling: Sampling) -> Generation:
        """Have the reader answer a prompt."""
        others = tuple(name for name in self._engines if name != _READER)
        return await self.stack.answer(prompt, namespace, sampling, avoid=others)

    async def compute_at_peer(self, prompt: Prompt, namespace: str) -> None:
        """Have the peer compute a prompt, and keep what is kept of it."""
        await self.stack.answer(prompt, namespace, Sampling(1), avoid=(_READER,))

    async def replace_peer(self) -> None:
        """Start the peer again, after it was killed: the old instance goes, and a new one comes to its location."""
        await self._peer_leaves()
        await self.peer.start()
        await self._peer_joins()

    async def _peer_joins(self) -> None:
        self._engines[self.peer.name] = self.peer.engine
        self._seen[self.peer.name] = ReaddressedEngine(self.peer.engine, self.relay.address)
        await self._live.follow()

    async def _peer_leaves(self) -> None:
        del self._engines[self.peer.name], self._seen[self.peer.name]
        await self._live.follow()
