"""Checks schemas of callers before the engine compiles them, within a budget for each caller."""

import asyncio
import math
import resource
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import structlog
from blake3 import blake3

from generator.grammars.messages import Limits, Request, Verdict, Vocabulary
from protocol.errors import InvalidRequest, Overloaded, RateLimited, Unavailable
from subprocesses.worker_process import WorkerEnded, WorkerProcess

if TYPE_CHECKING:
    from vllm.v1.engine.async_llm import AsyncLLM

log = structlog.get_logger(__name__)

_MINUTE_S = 60.0
_FIELD = "json_schema"
_MOST_OF_ONE = 4
_MOST_OF_ALL = 32
_RETRY_S = 1
_WALL_PER_CPU_S = 10
_BUDGET_PER_CPU_S = 3
_MEMORY_BYTES = 256 * 1024 * 1024
_MASK_S = 0.05
_ENTRY_BYTES = 4096
"""Weighs verdicts without a compiled grammar, which are few bytes here."""
_MIB = 1024 * 1024
_STACK_BYTES = 8 * _MIB
_STACK_BYTES_IF_UNLIMITED = 2 * _MIB
"""What glibc gives to threads of a process without a limit."""


class _Spent(NamedTuple):
    seconds: float
    at: float


class CompileBudgets:
    """A budget of ``seconds`` of processor time a minute for each caller. ``clock`` tells monotonic seconds.

    Spent time is given back evenly. A caller with any of it left may begin: what that costs is known at its end.
    """

    def __init__(self, seconds: float, clock: Callable[[], float]) -> None:
        self._seconds = seconds
        self._clock = clock
        self._spent: dict[str, _Spent] = {}

    def require(self, caller: str) -> None:
        """Raise RateLimited if the caller's budget is spent."""
        over = self._now_spent(caller) - self._seconds
        if over >= 0:
            raise RateLimited(
                f"New JSON schemas of this key have taken their {self._seconds:g} s of processor time a minute.",
                retry_after_s=math.ceil((over + 0.01) * _MINUTE_S / self._seconds),
            )

    def spend(self, caller: str, seconds: float) -> None:
        """Take from the caller's budget."""
        now = self._clock()
        # Who has all of it back is forgotten.
        self._spent = {other: spent for other, spent in self._spent.items() if self._left(spent, now) > 0}
        self._spent[caller] = _Spent(self._now_spent(caller) + seconds, now)

    def _now_spent(self, caller: str) -> float:
        spent = self._spent.get(caller)
        return 0.0 if spent is None else max(0.0, self._left(spent, self._clock()))

    def _left(self, spent: _Spent, now: float) -> float:
        """What is not given back yet."""
        return spent.seconds - (now - spent.at) * self._seconds / _MINUTE_S


class KnownVerdicts:
    """Verdicts by a schema's digest, the least recently used of which are forgotten.

    They weigh as much as their compiled grammars, up to ``most_bytes`` in all. If that is less than the engine's own
    cache of grammars holds, a schema with a verdict here costs the engine no second compilation.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._bytes = 0
        self._verdicts: OrderedDict[bytes, Verdict] = OrderedDict()

    def find(self, digest: bytes) -> Verdict | None:
        """The verdict, which counts as used now."""
        if digest in self._verdicts:
            self._verdicts.move_to_end(digest)
        return self._verdicts.get(digest)

    def add(self, digest: bytes, verdict: Verdict) -> None:
        """Remember a verdict that is not known yet."""
        self._verdicts[digest] = verdict
        self._bytes += _weight(verdict)
        while self._bytes > self._most_bytes:
            _, forgotten = self._verdicts.popitem(last=False)
            self._bytes -= _weight(forgotten)


@dataclass
class _Trial:
    """A schema that is being tried for ``caller``, and how many requests wait for the verdict."""

    caller: str
    verdict: "Future[Verdict | None]"
    waiting: int = 0


class SchemaChecks:
    """Has each schema tried once in a confined process, one at a time, and remembers the verdicts.

    A schema may take ``cpu_s`` seconds of processor time, and those of one caller three times as much a minute.
    ``vocabulary`` makes that of the engine, and ``stack_bytes`` is half of what its threads have at least. Verdicts are
    remembered for ``known_bytes`` of compiled grammars. The process starts with ``start``, and again if it ends.
    """

    def __init__(self, vocabulary: Callable[[], Vocabulary], cpu_s: int, stack_bytes: int, known_bytes: int) -> None:
        self._make_vocabulary = vocabulary
        self._limits = Limits(cpu_s, _WALL_PER_CPU_S * cpu_s, _MEMORY_BYTES, stack_bytes, _MASK_S)
        self._budgets = CompileBudgets(_BUDGET_PER_CPU_S * cpu_s, time.monotonic)
        self._known = KnownVerdicts(known_bytes)
        self._trials: dict[bytes, _Trial] = {}
        # Its only thread has the process, and its queue is that of the schemas.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="schemas")
        self._vocabulary: Vocabulary | None = None
        self._worker: WorkerProcess | None = None
        self._closed = False

    def start(self) -> None:
        """Start the process in the background, which takes seconds."""
        self._thread.submit(self._started)

    def close(self) -> None:
        """End the process. Requests that wait for a verdict get Unavailable. Idempotent."""
        self._closed = True
        worker = self._worker
        if worker is not None:
            worker.end()
        self._thread.shutdown(wait=False)

    async def require(self, schema: str, caller: str) -> None:
        """Return if the engine can compile and follow the schema at a bounded cost.

        Raises InvalidRequest if it cannot, RateLimited if the caller has too many or too costly new ones, Overloaded if
        all callers together have, and Unavailable if the process cannot run. A schema that nobody waits for any more is
        not begun.
        """
        try:
            digest = blake3(schema.encode()).digest()
        except UnicodeEncodeError as error:
            raise InvalidRequest(f"The JSON schema is refused: {error}.", _FIELD) from error
        verdict = self._known.find(digest) or await self._tried(digest, schema, caller)
        if verdict is None:
            raise Unavailable("schemas cannot be checked: the process that does so has ended")
        if verdict.refusal:
            raise InvalidRequest(f"The JSON schema is refused: {verdict.refusal}.", _FIELD)

    async def _tried(self, digest: bytes, schema: str, caller: str) -> Verdict | None:
        trial = self._trials.get(digest)
        if trial is None:
            trial = self._trials[digest] = self._begin(digest, schema, caller)
        trial.waiting += 1
        try:
            return await asyncio.shield(asyncio.wrap_future(trial.verdict))
        finally:
            trial.waiting -= 1
            if not trial.waiting and trial.verdict.cancel():
                del self._trials[digest]

    def _begin(self, digest: bytes, schema: str, caller: str) -> _Trial:
        self._budgets.require(caller)
        if sum(trial.caller == caller for trial in self._trials.values()) >= _MOST_OF_ONE:
            raise RateLimited(
                f"{_MOST_OF_ONE} new JSON schemas of this key are being checked, its limit; try again.",
                retry_after_s=_RETRY_S,
            )
        if len(self._trials) >= _MOST_OF_ALL:
            raise Overloaded("Too many new JSON schemas are being checked; try again later.")
        if self._closed:
            raise Unavailable("the engine is closed")
        trial = _Trial(caller, self._thread.submit(self._ask, schema))
        loop = asyncio.get_running_loop()
        # Also if nobody waits for it any more: its processor time is spent.
        trial.verdict.add_done_callback(lambda done: loop.call_soon_threadsafe(self._ended, digest, caller, done))
        return trial

    def _ended(self, digest: bytes, caller: str, done: "Future[Verdict | None]") -> None:
        if done.cancelled():
            return
        del self._trials[digest]
        # Those that wait for it get its error.
        verdict = done.result() if done.exception() is None else None
        if verdict is not None:
            self._known.add(digest, verdict)
            self._budgets.spend(caller, verdict.cpu_s)

    def _ask(self, schema: str) -> Verdict | None:
        """Ask the process, or a new one if that has ended."""
        for _ in range(2):
            if self._closed:
                break
            try:
                return self._started().ask(Request(schema, self._limits), Verdict)
            except WorkerEnded:
                self._worker = None
                log.warning("schema_process_ended")
        return None

    def _started(self) -> WorkerProcess:
        if self._worker is None:
            if self._vocabulary is None:
                self._vocabulary = self._make_vocabulary()
            worker = self._worker = WorkerProcess("generator.grammars.worker")
            if self._closed:
                worker.end()
            worker.ask(self._vocabulary, Verdict)
        return self._worker


def _weight(verdict: Verdict) -> int:
    return _ENTRY_BYTES + verdict.compiled_bytes


def engine_vocabulary(llm: "AsyncLLM") -> Vocabulary:
    """What vLLM's own backend makes of its tokenizer, and how it is configured."""
    from vllm.v1.structured_output.backend_xgrammar import XgrammarBackend

    config = llm.vllm_config
    backend = XgrammarBackend(config, tokenizer=llm.tokenizer, vocab_size=config.model_config.get_vocab_size())
    compact = backend.disable_any_whitespace
    # The backend does not keep what it compiles with, but everything that it has compiled does.
    info = backend.compiler.compile_builtin_json_grammar().tokenizer_info
    return Vocabulary(info.serialize_json(), any_whitespace=not compact, separators=(",", ":") if compact else None)


def trial_stack_bytes() -> int:
    """Half of the stack that the engine's threads have. A schema that fits into it does not overflow theirs."""
    limit, _ = resource.getrlimit(resource.RLIMIT_STACK)
    threads = _STACK_BYTES_IF_UNLIMITED if limit == resource.RLIM_INFINITY else min(limit, _STACK_BYTES)
    return threads // 2


def remembered_bytes() -> int:
    """Half of what vLLM's cache of compiled grammars holds."""
    from vllm import envs

    return int(envs.VLLM_XGRAMMAR_CACHE_MB) * _MIB // 2
