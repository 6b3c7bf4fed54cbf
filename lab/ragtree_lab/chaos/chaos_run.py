"""A chaos run: start a stack, learn its answers, load it, and kill processes meanwhile."""

import tempfile
import time
from collections.abc import Iterable
from contextlib import ExitStack, closing
from pathlib import Path
from random import Random
from typing import NamedTuple

import msgspec

from loadtest.errors import LoadTestError
from loadtest.locust_process import LocustProcess
from loadtest.reporting.request_records import BeginRecord, QueryRecord, Record, read_records
from loadtest.stack_api import StackApi
from loadtest.traffic.synthetic_corpus import SyntheticCorpus
from ragtree_lab.chaos.expected_answers import ExpectedAnswers
from ragtree_lab.chaos.kill_schedule import kill_schedule
from ragtree_lab.chaos.killer import Killer
from ragtree_lab.chaos.redis_process import RedisProcess
from ragtree_lab.chaos.request_verdicts import Judge, Judged, KillReport, kill_problems, request_problems
from ragtree_lab.chaos.settings import INSTANCES, ChaosSettings, Engine
from ragtree_lab.chaos.stack_monitor import StackMonitor
from ragtree_lab.chaos.victims import Kill, Victims
from ragtree_lab.watched_stack import WatchedStack

_WORDS = 60
"""Few enough for one chunk per document, which the fake engine's answers repeat."""
_REPEATS = {Engine.FAKE: 1, Engine.VLLM: 4}
_AFTERWARDS_S = 4.0
_MOST_S = 24 * 3600.0
_POLL_S = 0.1


class ChaosResult(NamedTuple):
    """The result of a run. It passed if ``problems`` is empty. ``seconds`` is the duration of the load."""

    problems: list[str]
    judged: list[Judged]
    kills: list[KillReport]
    seconds: float
    drained_s: float | None


class ChaosRun:
    """One run, recorded in ``folder``. The stack's data is deleted at the end."""

    def __init__(self, settings: ChaosSettings, folder: Path) -> None:
        self._settings = settings
        self._folder = folder
        self._corpus = SyntheticCorpus(settings.documents, _WORDS, settings.seed)

    def run(self) -> ChaosResult:
        """Run it all. Raises LoadTestError if that is not possible."""
        with ExitStack() as open_, tempfile.TemporaryDirectory(prefix="ragtree-chaos-") as scratch:
            redis = open_.enter_context(closing(RedisProcess(Path(scratch))))
            environment = self._settings.environment(redis.url)
            stack = WatchedStack(Path(scratch) / "data", self._folder / "stack.log", environment)
            try:
                stack.start()
                chaos = self._load_and_kill(stack, redis)
            finally:
                left = stack.stop()
        return chaos._replace(problems=[*chaos.problems, *(f"left behind: {each}" for each in left)])

    def _load_and_kill(self, stack: WatchedStack, redis: RedisProcess) -> ChaosResult:
        with StackApi(stack.url) as api:
            api.ingest(self._corpus, self._corpus.name)
        expected = self._learn(stack)
        probe = {"query": self._corpus.questions[0], "collection": self._corpus.name, "max_tokens": 1}
        victims = Victims(stack, redis, self._settings.redis_away_s, self._draws("victims"))
        with closing(StackMonitor(stack.url, INSTANCES, probe)) as monitor:
            killer = self._killer(victims, monitor)
            records = self._load(stack, killer)
            drained_s = self._drained(monitor)
        begin = next(record.monotonic for record in records if isinstance(record, BeginRecord))
        queries = [record for record in records if isinstance(record, QueryRecord)]
        kills = [_since(begin, kill) for kill in killer.kills]
        judge = Judge(kills, expected.wrong)
        judged = [judge.judge(query) for query in queries]
        problems = request_problems(judged, kills) + kill_problems(kills, self._settings.victims)
        if drained_s is None:
            problems.append("the controller still has queries running or queued after the end of the load")
        seconds = max((query.ended or query.at for query in queries), default=0.0)
        return ChaosResult(problems, judged, judge.report(judged), seconds, drained_s)

    def _killer(self, victims: Victims, monitor: StackMonitor) -> Killer:
        planned = kill_schedule(self._settings.victims, self._settings.pause_s, self._draws("kills"))
        return Killer(victims, self._settings.victims, monitor, planned, self._settings.overlapping)

    def _learn(self, stack: WatchedStack) -> ExpectedAnswers:
        """Ask every question without disturbance. Raises LoadTestError if the answers are no reference."""
        questions = self._corpus.questions * _REPEATS[self._settings.engine]
        lines = [{"at": number / self._settings.rate, "query": query} for number, query in enumerate(questions)]
        trace = _written(self._folder / "trace.jsonl", lines)
        with closing(self._begin(stack, "undisturbed", "--trace", trace)) as load:
            load.results()
            assert load.folder is not None
        records = [record for record in read_records(load.folder) if isinstance(record, QueryRecord)]
        texts = {document.id: f"{document.title} {document.text}" for document in self._corpus.documents}
        expected = ExpectedAnswers(records, texts if self._settings.engine is Engine.FAKE else None)
        if problems := expected.problems(self._corpus.questions):
            raise LoadTestError("; ".join(problems))
        return expected

    def _load(self, stack: WatchedStack, killer: Killer) -> list[Record]:
        lines = [{"query": question} for question in self._corpus.questions]
        schedule = ("--schedule", f"{self._settings.rate:.4f}:{_MOST_S:g}")
        questions = ("--questions", _written(self._folder / "questions.jsonl", lines))
        with closing(self._begin(stack, "load", *schedule, *questions)) as load:
            while (folder := load.folder) is None or not read_records(folder):
                if load.ended(_POLL_S):
                    raise LoadTestError("the load test ended before its traffic started; see its output above")
            killer.run(self._settings.minutes * 60)
            load.ended(_AFTERWARDS_S)
            load.end_arrivals()
            load.results()
        return read_records(folder)

    def _begin(self, stack: WatchedStack, name: str, *options: str) -> LocustProcess:
        reports = self._folder / name
        reports.mkdir()
        fixed = ["--collection", self._corpus.name, "--max-tokens", str(self._settings.max_tokens)]
        # Longer than the stack's own timeout, so that the stack ends the query.
        fixed += ["--timeout", f"{self._settings.timeout_s + 10:g}", "--seed", str(self._settings.seed)]
        return LocustProcess(stack.url, reports, [*fixed, *options])

    def _drained(self, monitor: StackMonitor) -> float | None:
        """Return after how many seconds the controller had no query left, or None if it still has."""
        begun = time.monotonic()
        while (waited := time.monotonic() - begun) < self._settings.lease_s + 10:
            if monitor.queries_under_way() == (0, 0):
                return waited
            time.sleep(_POLL_S)
        return None

    def _draws(self, purpose: str) -> Random:
        return Random(f"{self._settings.seed}/{purpose}")  # noqa: S311 - repeatable


def _since(begin: float, kill: Kill) -> Kill:
    recovered = None if kill.recovered is None else kill.recovered - begin
    confirmed = None if kill.confirmed is None else kill.confirmed - begin
    return msgspec.structs.replace(kill, at=kill.at - begin, recovered=recovered, confirmed=confirmed)


def _written(file: Path, lines: Iterable[object]) -> str:
    file.write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
    return str(file.absolute())
