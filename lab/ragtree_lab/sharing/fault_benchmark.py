"""Faults of a peer while queries go on: whether answers stay right, how late they are, and when the peer serves again.

All queries go to one machine, at equal intervals. They are new questions about documents that only its peer holds, in
turn. Each fault has four phases with the same queries:

- computed: each query in a namespace of its own, in which nothing is cached. Its answers are the right ones, and its
  times are what computing takes at this rate.
- before the fault, during it, and after it, until the peer has served again.

While another engine takes the place of a killed one, no queries arrive: its start would take their processors.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from uuid import uuid4

import msgspec

from cachectl.settings import ControllerSettings
from examine.measuring import Progress
from examine.measuring.kv_paths import QUESTION_TOKENS, random_segment
from protocol.errors import ConfigError, Unavailable
from protocol.generation import Sampling
from protocol.kv import KvMemory
from protocol.prompts import Prompt, Segment, SegmentKind
from ragtree_lab.measuring.engines import ComparedEngines
from ragtree_lab.sharing.fault_rows import SERVES_AGAIN_S, FaultRow, Phase, phase, row, was_read
from ragtree_lab.sharing.open_loop import Arrived, Ask, arriving, never
from ragtree_lab.sharing.peer_faults import Fault, PeerFaults
from ragtree_lab.sharing.reader_and_peer import ReaderAndPeer

_NAMESPACE = "benchmark"
_SYSTEM = random_segment("system", 32, SegmentKind.SYSTEM)


class Queries(msgspec.Struct, frozen=True):
    """``rate`` queries a second, for ``seconds`` before each fault and as long during it.

    They concern one of ``documents`` of ``document_tokens`` tokens each. Answers have ``answer_tokens`` tokens.
    """

    rate: float
    seconds: float
    documents: int
    document_tokens: int
    answer_tokens: int


class PeerFaultsResult(msgspec.Struct, frozen=True):
    """A row for each fault. ``document_bytes`` is the KV of a document."""

    dtype: str
    rate: float
    timeout_s: float
    document_tokens: int
    document_bytes: int
    rows: list[FaultRow]


class PeerFaultsBenchmark:
    """Measures ``queries`` with each fault. The peer has ``host_gib`` GiB of memory for KV.

    ``profiles`` is the folder of cost profiles. The engines compute in ``dtype``.
    """

    def __init__(
        self,
        engines: ComparedEngines,
        controller: ControllerSettings,
        profiles: Path,
        dtype: str,
        queries: Queries,
        host_gib: float,
    ) -> None:
        self._engines = engines
        self._controller = controller
        self._profiles = profiles
        self._dtype = dtype
        self._queries = queries
        self._host_gib = host_gib

    async def run(self, faults: Sequence[Fault], seed: int, progress: Progress) -> PeerFaultsResult:
        """Measure the faults in order.

        Raises what the engines raise, Unavailable if a computed query fails, and ConfigError if the documents of a
        phase do not exceed twice what the reader keeps: it would not read them again.
        """
        asked = self._queries
        documents = [
            random_segment(f"document {seed} {number}", asked.document_tokens) for number in range(asked.documents)
        ]
        async with ReaderAndPeer.running(self._engines, self._controller, self._profiles, self._host_gib) as pair:
            self._check(pair.memory)
            for number, document in enumerate(documents):
                progress("computing documents at the peer", number, len(documents))
                await pair.compute_at_peer(_prompt(document, f"{seed} {number}"), _NAMESPACE)
            await pair.stack.settle()
            progress("computing documents at the peer", len(documents), len(documents))
            prompts = (_prompt(document, f"{seed} {number}") for number, document in enumerate(cycle(documents), 1))
            memory = pair.memory
            rows = [
                await self._row(fault, pair, list(islice(prompts, self._phase_queries)), progress) for fault in faults
            ]
        return PeerFaultsResult(
            dtype=self._dtype,
            rate=asked.rate,
            timeout_s=memory.peers.timeout_s,
            document_tokens=asked.document_tokens,
            document_bytes=asked.document_tokens * memory.page_bytes // memory.page_tokens,
            rows=rows,
        )

    @property
    def _phase_queries(self) -> int:
        return max(1, round(self._queries.rate * self._queries.seconds))

    def _check(self, memory: KvMemory) -> None:
        kept = memory.gpu_pages * memory.page_tokens
        tokens = min(self._queries.documents, self._phase_queries) * self._queries.document_tokens
        if tokens < 2 * kept:
            raise ConfigError(
                f"the queries of a phase concern {tokens} tokens of documents, and the reader keeps {kept}: give more "
                f"documents and seconds, so that they are {2 * kept} or more, or a smaller KV cache",
                "documents",
            )

    async def _row(self, fault: Fault, pair: ReaderAndPeer, prompts: Sequence[Prompt], progress: Progress) -> FaultRow:
        step = f"measuring {fault}"
        timeout_s = pair.memory.peers.timeout_s
        progress(step, 0, 4)
        came = await arriving(self._asks(pair, prompts, None), self._queries.rate)
        computed = [arrived for arrived in came if arrived is not None]
        if len(computed) < len(came):
            raise Unavailable("a query was not answered although nothing was wrong")

        async def measured(
            asked: Iterable[Prompt], enough: Callable[[Arrived], bool] = never
        ) -> tuple[list[Arrived | None], Phase]:
            failed = (await pair.stack.stats()).peer_failures
            came = await arriving(self._asks(pair, asked, _NAMESPACE), self._queries.rate, enough)
            failures = (await pair.stack.stats()).peer_failures - failed
            return came, phase(came, computed, failures, timeout_s)

        progress(step, 1, 4)
        _, before = await measured(prompts)
        progress(step, 2, 4)
        async with PeerFaults(pair, self._queries.document_tokens).having(fault):
            _, during = await measured(prompts)
        progress(step, 3, 4)
        back_at = time.monotonic()
        came, after = await measured(islice(cycle(prompts), round(SERVES_AGAIN_S * self._queries.rate)), was_read)
        progress(step, 4, 4)
        served = [arrived.first_token_at - back_at for arrived in came if arrived is not None and was_read(arrived)]
        return row(fault, computed, before, during, after, min(served, default=None), timeout_s)

    def _asks(self, pair: ReaderAndPeer, prompts: Iterable[Prompt], namespace: str | None) -> Iterator[Ask]:
        """What asks the prompts: in one namespace, or each in a new one, in which nothing is cached."""
        sampling = Sampling(self._queries.answer_tokens, logprobs=True)
        for prompt in prompts:
            yield partial(pair.ask, prompt, namespace or uuid4().hex, sampling)


def _prompt(document: Segment, question: str) -> Prompt:
    return Prompt((_SYSTEM, document, random_segment(f"question {question}", QUESTION_TOKENS, SegmentKind.QUESTION)))
