"""A stack for the page in one thread: the real gateway, retriever and controller, and a fake engine.

The engine has no model. It takes as long as a small model would for the uncached tokens, and answers with the first
document. The search is real, but slowed down, and its first stages rank the documents differently.
"""

import asyncio
import re
import socket
import threading
import time
from collections import Counter
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from itertools import takewhile
from pathlib import Path

import httpx
import msgspec
import uvicorn
from controller_integrity import check_integrity
from fake_layout import FakeLayout
from fastapi import FastAPI
from varied import varied

from cachectl.costs.device_profile import DeviceProfile
from cachectl.runtime.controller import Controller, Engines
from cachectl.settings import ControllerSettings
from cachectl.tiers.location import Capacities, KvStorage
from gateway.app import create_app
from gateway.settings import GatewaySettings
from protocol.errors import EngineNotReady
from protocol.generation import EngineInfo, GenerationStep, PrefillResult, Sampling, StepBudget
from protocol.plans import PrefillPlan
from protocol.retrieval import CandidateSet, SearchRequest
from protocol.tiers import Tier
from retriever.build import build_retriever
from retriever.retriever import Retriever
from retriever.settings import ChunkSettings, GraphSettings, HashingSettings, RetrieverSettings

DOCS = Path(__file__).parents[2] / "docs"
# Not all of them, so that the screenshots do not change with every new page.
PAGES = (
    "architecture",
    "composition",
    "dependencies",
    "knowledge-tree",
    "policies",
    "retrieval",
    "scaling",
    "speculation",
    "storage",
)
CONTEXT = 8192
STAGES = 4


def documents() -> dict[str, str]:
    """The sections of this project's documents as plain text, by location."""
    found = {}
    for path in (DOCS / f"{page}.md" for page in PAGES):
        for section in re.split(r"^(?=#+ )", path.read_text(encoding="utf-8"), flags=re.MULTILINE):
            title, _, text = section.partition("\n")
            prose = re.sub(r"```.*?```|^( {4}|\|)[^\n]*", "", text, flags=re.MULTILINE | re.DOTALL)
            words = re.sub(r"[`*]|^- |\[|\]\([^)]*\)", "", prose, flags=re.MULTILINE).split()
            if len(words) > 25:
                found[f"{path.stem}/{re.sub('[^a-z0-9]+', '-', title.lower()).strip('-')}"] = " ".join(words)
    return found


class StagedSearch:
    """A real retriever whose search stages take ``stage_s``. The first stage has the last documents in front."""

    def __init__(self, retriever: Retriever) -> None:
        self._retriever = retriever
        self.stage_s = 0.04

    def __getattr__(self, name: str):
        return getattr(self._retriever, name)

    async def search(self, request: SearchRequest) -> AsyncGenerator[CandidateSet]:
        began = time.monotonic()
        found = [found async for found in self._retriever.search(request)][-1]
        for stage in range(1, STAGES + 1):
            await asyncio.sleep(self.stage_s)
            yield msgspec.structs.replace(
                found,
                stage=stage,
                of=STAGES,
                docs=found.docs[::-1] if stage == 1 else found.docs,
                scores=found.scores[::-1] if stage == 1 else found.scores,
                final=stage == STAGES,
                elapsed_ms=(time.monotonic() - began) * 1000,
            )


class WordLayout(FakeLayout):
    """A layout with one token per word. Keeps the texts for the engine to repeat."""

    def __init__(self) -> None:
        super().__init__(CONTEXT)
        self.texts: dict[str, str] = {}

    def lay_out(self, messages, documents, max_tokens, **options):
        self.texts.update((chunk.content_hash, chunk.text) for chunk in documents)
        return super().lay_out(messages, documents, max_tokens, **options)


class ReadingEngine:
    """A fake engine. It repeats the first document after the prefill time of the uncached tokens."""

    def __init__(self, texts: dict[str, str]) -> None:
        self._texts = texts
        self._ending: dict[str, asyncio.Event] = {}
        self.up = True
        self.prefill_tokens_per_s = 6000.0
        self.load_tokens_per_s = 60_000.0
        self.decode_tokens_per_s = 60.0
        self.longest = 90
        self.open = 0

    async def ready(self) -> None:
        if not self.up:
            raise EngineNotReady("The engine is being restarted.")

    async def info(self) -> EngineInfo:
        await self.ready()
        return EngineInfo("fake-reader", "fake", CONTEXT, step=StepBudget(CONTEXT, CONTEXT))

    async def end(self, plan_id: str) -> None:
        if plan_id in self._ending:
            self._ending[plan_id].set()

    async def carry_out(self, orders):
        return ()

    async def residency(self):
        return ()

    async def stream(self, plan: PrefillPlan, sampling: Sampling) -> AsyncGenerator[GenerationStep]:
        await self.ready()
        for plan_id in plan.ends:
            await self.end(plan_id)
        ended = self._ending[plan.query_id] = asyncio.Event()
        self.open += 1
        try:
            prefill = await self._prefill(plan, ended)
            if prefill is None:
                yield GenerationStep("", 0, None, "ended")
                return
            words = re.findall(r"\S+\s*", self._text(plan))[: min(sampling.max_tokens, self.longest)]
            for number, word in enumerate(words, start=1):
                if number > 1:
                    await asyncio.sleep(1 / self.decode_tokens_per_s)
                reason = "ended" if ended.is_set() else "stop" if number == len(words) else None
                yield GenerationStep(word, 1, prefill, reason)
                prefill = None
                if reason is not None:
                    return
        finally:
            self.open -= 1
            del self._ending[plan.query_id]

    def _text(self, plan: PrefillPlan) -> str:
        return self._texts[plan.prompt.documents[0].key]

    async def _prefill(self, plan: PrefillPlan, ended: asyncio.Event) -> PrefillResult | None:
        """The result, or None if the plan was ended before."""
        loaded = Counter[Tier]()
        for node in takewhile(lambda node: node.source is not None, plan.nodes):
            loaded[node.source] += node.tokens
        load_s = (loaded[Tier.HOST] + loaded[Tier.DISK]) / self.load_tokens_per_s
        computed = plan.prompt.token_count - loaded.total()
        began = time.monotonic()
        try:
            async with asyncio.timeout(load_s + computed / self.prefill_tokens_per_s):
                await ended.wait()
            return None
        except TimeoutError:
            took_ms = (time.monotonic() - began) * 1000
            return PrefillResult(plan.prompt.token_count, loaded.total(), took_ms, load_s * 1000, loaded=dict(loaded))


class PageStack:
    """The parts. ``serving`` creates a stack that is served at ``url``."""

    def __init__(self, folder: Path, gpu: int, host: int, graph: GraphSettings) -> None:
        self.url = ""
        self.app: FastAPI | None = None
        self.server: uvicorn.Server | None = None
        self.loop: asyncio.AbstractEventLoop | None = None
        settings = RetrieverSettings(embedder=HashingSettings(), chunks=ChunkSettings(size=400, overlap=0), graph=graph)
        self.retriever = StagedSearch(build_retriever(settings, folder))
        self.layout = WordLayout()
        self.generator = ReadingEngine(self.layout.texts)
        self.controller = Controller(
            ControllerSettings(prepare_after_s=None),
            ["engine-0"],
            time.monotonic,
            Engines(DeviceProfile.shipped("a10g-7b").costs, StepBudget(CONTEXT, CONTEXT)),
            KvStorage(Capacities(gpu, host, 0)),
        )

    def cut_connections(self) -> None:
        """Drop all connections at once."""
        for connection in list(self.server.server_state.connections):
            self.loop.call_soon_threadsafe(connection.transport.abort)

    def ingest(self, texts: dict[str, str], collection: str = "default", key: str | None = None) -> None:
        """Upload documents, and wait until they are searchable."""
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        with httpx.Client(base_url=self.url, headers=headers, timeout=30) as client:
            lines = "\n".join(
                msgspec.json.encode({"id": name, "text": text, "filename": f"{name}.md"}).decode()
                for name, text in texts.items()
            )
            jsonl = {"content-type": "application/x-ndjson"}
            posted = client.post(f"/v1/collections/{collection}/documents:batch", content=lines, headers=jsonl)
            job = posted.raise_for_status().json()
            while job["status"] in ("queued", "in_progress"):
                time.sleep(0.01)
                job = client.get(posted.headers["location"]).json()
            assert job["status"] == "completed", job


@contextmanager
def serving(
    folder: Path, gpu: int = 12_000, host: int = 40_000, graph: GraphSettings | None = None, **settings
) -> Iterator[PageStack]:
    """A stack on a free port of 127.0.0.1, served from its own thread."""
    stack = PageStack(folder, gpu, host, graph or GraphSettings())
    listener = socket.socket()
    # asyncio does not detect TCP on such a listener, so it does not set TCP_NODELAY.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    listener.bind(("127.0.0.1", 0))

    async def serve() -> None:
        stack.loop = asyncio.get_running_loop()
        await stack.retriever.start()
        stack.app = create_app(stack, varied(GatewaySettings, readiness_interval_s=0.1, **settings))
        stack.server = uvicorn.Server(uvicorn.Config(stack.app, log_level="warning", timeout_graceful_shutdown=1))
        await stack.server.serve(sockets=[listener])
        await stack.retriever.close()
        check_integrity(stack.controller)

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    try:
        give_up = time.monotonic() + 20
        while stack.server is None or not stack.server.started:
            assert thread.is_alive(), "the gateway did not start"
            assert time.monotonic() < give_up, "the gateway did not start in time"
            time.sleep(0.01)
        stack.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        yield stack
    finally:
        if stack.server is not None:
            stack.server.should_exit = True
        thread.join(15)
        listener.close()
