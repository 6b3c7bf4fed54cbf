"""One run against a stack: learn the right answers, attack, and see what is left of it."""

import asyncio
import logging
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import psutil

from loadtest.errors import StackNotReady
from loadtest.reporting.run_facts import machine
from loadtest.traffic.synthetic_corpus import SyntheticCorpus
from ragtree_lab.fuzz.campaign import AFTERMATH_S, Campaign, Trace
from ragtree_lab.fuzz.drawing import Drawing
from ragtree_lab.fuzz.fuzz_report import FuzzReport, Judged
from ragtree_lab.fuzz.fuzzed_stack import JUDGED_TENANT, Keys
from ragtree_lab.fuzz.inputs.questions import COLLECTION
from ragtree_lab.fuzz.judge import Judge
from ragtree_lab.fuzz.keeper import Keeper
from ragtree_lab.fuzz.lateness import Lateness
from ragtree_lab.fuzz.sender import Sender
from ragtree_lab.fuzz.sources import LANES, Lane, strategies
from ragtree_lab.fuzz.watcher import Watcher

_log = logging.getLogger(__name__)
_PROGRESS_S = 10.0
_DRAIN_S = 120.0
_POLL_S = 0.5
_MIB = 2**20
_DOCUMENTS, _WORDS = 20, 250


class FuzzSettings(NamedTuple):
    """How long, with which seed and files, and from which sources. The judge pauses ``pause_s`` between questions.

    ``most`` bounds the inputs of each lane.
    """

    seed: int
    seconds: float
    files: tuple[Path, ...]
    pause_s: float = 1.0
    most: int | None = None
    lanes: Sequence[Lane] = LANES


class FuzzRun:
    """A campaign against the stack at ``url`` with these keys. What broke something is kept in ``folder``.

    ``root`` is the stack's process, None if it is on another machine.
    """

    def __init__(self, settings: FuzzSettings, url: str, keys: Keys, root: psutil.Process | None, folder: Path) -> None:
        self._settings = settings
        self._url = url
        self._keys = keys
        self._trace = Trace()
        self._keeper = Keeper(folder / "kept")
        self._watcher = Watcher(url, root, self._harmed)
        self._judge = Judge(url, keys.judge, settings.seed, self._judged)
        self._interrupted = False

    async def run(self) -> FuzzReport:
        """Run it to its end, or to Ctrl-C. Raises StackNotReady if the stack cannot be attacked."""
        settings = self._settings
        openapi, model = await self._described()
        sources = [source for lane in settings.lanes for source in lane.sources]
        drawing = Drawing(settings.seed, sources, strategies, openapi, model, JUDGED_TENANT, settings.files)
        self._watcher.start()
        try:
            await self._furnish()
            await self._judge.learn()
            await drawing.ready()
            lateness = Lateness()
            sender = Sender(self._url, self._keys.of_callers, lateness)
            campaign = Campaign(drawing, sender, self._watcher, self._judge, self._keeper, self._trace)
            begun = time.monotonic()
            await self._attack(campaign, lateness)
            seconds = time.monotonic() - begun
            # Whoever interrupts it does not want to wait for what is left to see.
            drained_s, upload_s = (None, None) if self._interrupted else await self._afterwards()
            return self._report(campaign, seconds, drained_s, upload_s)
        finally:
            self._watcher.close()
            drawing.close()
            await self._judge.close()

    async def _afterwards(self) -> tuple[float | None, float | None]:
        """See that the stack is well again: after how long it had no query left, and took in one more document."""
        drained_s = await self._drained()
        for question in self._judge.questions:
            await self._judge.ask(question)
        await self._judge.inspect()
        return drained_s, await self._judge.upload()

    async def _attack(self, campaign: Campaign, lateness: Lateness) -> None:
        settings = self._settings
        attack = asyncio.create_task(campaign.attack(settings.lanes, settings.seconds, settings.pause_s, settings.most))
        beside = [asyncio.create_task(self._tell(campaign)), asyncio.create_task(lateness.watch())]
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._interrupt, attack)
        try:
            with suppress(asyncio.CancelledError):
                await attack
        finally:
            for task in beside:
                task.cancel()
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)
            # asyncio leaves SIGTERM to the kernel, which would leave the stack behind.
            signal.signal(signal.SIGTERM, signal.default_int_handler)

    def _interrupt(self, attack: "asyncio.Task[None]") -> None:
        self._interrupted = True
        attack.cancel()

    async def _tell(self, campaign: Campaign) -> None:
        begun = time.monotonic()
        while True:
            await asyncio.sleep(_PROGRESS_S)
            seconds = time.monotonic() - begun
            requests = sum(campaign.requests.values())
            wrong = sum(each.wrong is not None for each in self._judge.during)
            _log.info(
                "%.0f of %.0f s: %d requests (%.1f/s), %d files (%.1f/s), judge asked %d, %d not right; %d findings%s",
                seconds,
                self._settings.seconds,
                requests,
                requests / seconds,
                campaign.files,
                campaign.files / seconds,
                len(self._judge.during),
                wrong,
                sum(self._keeper.counts.values()),
                "" if self._watcher.is_ready else "; waiting for the stack",
            )

    async def _described(self) -> tuple[dict[str, Any], str]:
        """Return the stack's OpenAPI document and its model's id."""
        headers = {"Authorization": f"Bearer {self._keys.stranger}"}
        try:
            async with httpx.AsyncClient(base_url=self._url, headers=headers, timeout=60) as http:
                document = (await http.get("/openapi.json")).raise_for_status().json()
                model = (await http.get("/v1/models")).raise_for_status().json()["data"][0]["id"]
        except (httpx.HTTPError, ValueError) as error:
            raise StackNotReady(f"no stack at {self._url} that accepts the stranger's key: {error!r}") from error
        return document, str(model)

    async def _furnish(self) -> None:
        """Give the stranger documents, so that prompts are longer than one step of the engine."""
        headers = {"Authorization": f"Bearer {self._keys.stranger}", "Content-Type": "application/x-ndjson"}
        async with httpx.AsyncClient(base_url=self._url, headers=headers, timeout=60) as http:
            for lines in SyntheticCorpus(_DOCUMENTS, _WORDS, self._settings.seed).batches():
                answer = await http.post(f"/v1/collections/{COLLECTION}/documents:batch", content=lines)
                if answer.is_error:
                    raise StackNotReady(f"the stranger's documents were not accepted: {answer.text}")

    async def _drained(self) -> float | None:
        """Wait until no query is running or queued, and return how long that took."""
        begun = time.monotonic()
        headers = {"Authorization": f"Bearer {self._keys.admin}"}
        async with httpx.AsyncClient(base_url=self._url, headers=headers, timeout=30) as http:
            while (waited := time.monotonic() - begun) < _DRAIN_S:
                with suppress(httpx.HTTPError, ValueError, KeyError):
                    stats = (await http.get("/v1/admin/cache/stats")).raise_for_status().json()
                    if not stats["running"] and not stats["queued"] and self._watcher.is_ready:
                        return waited
                await asyncio.sleep(_POLL_S)
        return None

    def _harmed(self, what: str) -> None:
        self._keeper.keep(what, self._trace.suspects())

    def _judged(self, what: str) -> None:
        if not self._watcher.died_since(time.monotonic() - AFTERMATH_S) and self._watcher.is_ready:
            self._harmed(f"the judge: {what}")

    def _report(
        self, campaign: Campaign, seconds: float, drained_s: float | None, upload_s: float | None
    ) -> FuzzReport:
        memory = {name: (m.first // _MIB, m.most // _MIB, m.last // _MIB) for name, m in self._watcher.memory.items()}
        return FuzzReport(
            seed=self._settings.seed,
            interrupted=self._interrupted,
            seconds=seconds,
            requests=dict(campaign.requests),
            inputs=dict(campaign.inputs),
            files=campaign.files,
            statuses=dict(campaign.statuses),
            findings=dict(self._keeper.counts),
            ended_processes=len(self._watcher.deaths),
            longest_stall_s=self._watcher.longest_stall_s,
            longest_lateness_s=self._watcher.longest_lateness_s,
            memory_mib=memory,
            judge=Judged.of(self._judge.idle, self._judge.during, upload_s),
            drained_s=drained_s,
            left=[],
            machine=machine(),
        )
