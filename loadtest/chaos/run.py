"""A run of chaos: a stack of its own, right answers learnt of it, a load, and kills meanwhile."""

import tempfile
import time
from collections.abc import Iterable
from contextlib import ExitStack, closing
from pathlib import Path
from random import Random
from typing import NamedTuple

import msgspec

from loadtest.chaos.judging import Judge, Judged, KillReport, problems_of, problems_of_kills
from loadtest.chaos.killing import Killing
from loadtest.chaos.own_redis import OwnRedis
from loadtest.chaos.own_stack import OwnStack
from loadtest.chaos.recovery import Watch
from loadtest.chaos.right_answers import RightAnswers
from loadtest.chaos.schedule import kills
from loadtest.chaos.settings import INSTANCES, ChaosSettings, Engine
from loadtest.chaos.victims import Kill, Victims
from loadtest.errors import LoadTestError
from loadtest.locust_process import LocustProcess
from loadtest.reporting.records import BeginRecord, QueryRecord, Record, read_records
from loadtest.stack_api import StackApi
from loadtest.traffic.corpus import SyntheticCorpus

_WORDS = 60
"""So few that a document is one chunk, which the fake engine's answers begin."""
_TIMES_EACH = {Engine.FAKE: 1, Engine.VLLM: 4}
_SETTLE_S = 4.0
_MOST_S = 24 * 3600.0
_POLL_S = 0.1


class Chaos(NamedTuple):
    """What came of a run; ``problems`` is empty where it has passed. ``seconds`` is the load's time."""

    problems: list[str]
    judged: list[Judged]
    kills: list[KillReport]
    seconds: float
    drained_s: float | None


class ChaosRun:
    """One run, which keeps all there is to know of it in ``folder``; its stack's data goes when it ends."""

    def __init__(self, settings: ChaosSettings, folder: Path) -> None:
        self._settings = settings
        self._folder = folder
        self._corpus = SyntheticCorpus(settings.documents, _WORDS, settings.seed)

    def run(self) -> Chaos:
        """All of it. Raises LoadTestError where it could not be done."""
        with ExitStack() as open_, tempfile.TemporaryDirectory(prefix="ragtree-chaos-") as scratch:
            redis = open_.enter_context(closing(OwnRedis(Path(scratch))))
            environment = self._settings.environment(redis.url)
            stack = OwnStack(Path(scratch) / "data", self._folder / "stack.log", environment)
            try:
                stack.start()
                chaos = self._disturb(stack, redis)
            finally:
                left = stack.stop()
        return chaos._replace(problems=[*chaos.problems, *(f"left behind: {each}" for each in left)])

    def _disturb(self, stack: OwnStack, redis: OwnRedis) -> Chaos:
        with StackApi(stack.url) as api:
            api.ingest(self._corpus, self._corpus.name)
        right = self._learn(stack)
        probe = {"query": self._corpus.questions[0], "collection": self._corpus.name, "max_tokens": 1}
        victims = Victims(stack, redis, self._settings.redis_away_s, self._draws("victims"))
        with closing(Watch(stack.url, INSTANCES, probe)) as watch:
            killing = self._killing(victims, watch)
            records = self._load(stack, killing)
            drained_s = self._drained(watch)
        begin = next(record.monotonic for record in records if isinstance(record, BeginRecord))
        queries = [record for record in records if isinstance(record, QueryRecord)]
        happened = [_since(begin, kill) for kill in killing.kills]
        judge = Judge(happened, right.wrong)
        judged = [judge.judge(query) for query in queries]
        problems = problems_of(judged, happened) + problems_of_kills(happened, self._settings.victims)
        if drained_s is None:
            problems.append("the controller still has queries running or waiting, though the load has ended")
        seconds = max((query.ended or query.at for query in queries), default=0.0)
        return Chaos(problems, judged, judge.report(judged), seconds, drained_s)

    def _killing(self, victims: Victims, watch: Watch) -> Killing:
        planned = kills(self._settings.victims, self._settings.pause_s, self._draws("kills"))
        return Killing(victims, self._settings.victims, watch, planned, self._settings.overlapping)

    def _learn(self, stack: OwnStack) -> RightAnswers:
        """Ask everything of the stack while nobody disturbs it. Raises LoadTestError where that is no measure."""
        questions = self._corpus.questions * _TIMES_EACH[self._settings.engine]
        lines = [{"at": number / self._settings.rate, "query": query} for number, query in enumerate(questions)]
        trace = _written(self._folder / "trace.jsonl", lines)
        with closing(self._begin(stack, "undisturbed", "--trace", trace)) as load:
            load.results()
            assert load.folder is not None
        records = [record for record in read_records(load.folder) if isinstance(record, QueryRecord)]
        texts = {document.id: f"{document.title} {document.text}" for document in self._corpus.documents}
        right = RightAnswers(records, texts if self._settings.engine is Engine.FAKE else None)
        if problems := right.problems(self._corpus.questions):
            raise LoadTestError("; ".join(problems))
        return right

    def _load(self, stack: OwnStack, killing: Killing) -> list[Record]:
        lines = [{"query": question} for question in self._corpus.questions]
        schedule = ("--schedule", f"{self._settings.rate:.4f}:{_MOST_S:g}")
        questions = ("--questions", _written(self._folder / "questions.jsonl", lines))
        with closing(self._begin(stack, "load", *schedule, *questions)) as load:
            while (folder := load.folder) is None or not read_records(folder):
                if load.ended(_POLL_S):
                    raise LoadTestError("the load test ended before its traffic began; what it says above is why")
            killing.go_on(self._settings.minutes * 60)
            load.ended(_SETTLE_S)
            load.end_arrivals()
            load.results()
        return read_records(folder)

    def _begin(self, stack: OwnStack, name: str, *options: str) -> LocustProcess:
        reports = self._folder / name
        reports.mkdir()
        fixed = ["--collection", self._corpus.name, "--max-tokens", str(self._settings.max_tokens)]
        # Longer than the stack may take for a query, so that it is the stack that ends it.
        fixed += ["--timeout", f"{self._settings.timeout_s + 10:g}", "--seed", str(self._settings.seed)]
        return LocustProcess(stack.url, reports, [*fixed, *options])

    def _drained(self, watch: Watch) -> float | None:
        """After how many seconds the controller had nothing under way any more; None: it still had."""
        begun = time.monotonic()
        while (waited := time.monotonic() - begun) < self._settings.timeout_s + 10:
            if watch.under_way() == (0, 0):
                return waited
            time.sleep(_POLL_S)
        return None

    def _draws(self, purpose: str) -> Random:
        return Random(f"{self._settings.seed}/{purpose}")  # noqa: S311 - a repeatable draw


def _since(begin: float, kill: Kill) -> Kill:
    recovered = None if kill.recovered is None else kill.recovered - begin
    return msgspec.structs.replace(kill, at=kill.at - begin, recovered=recovered)


def _written(file: Path, lines: Iterable[object]) -> str:
    file.write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
    return str(file.absolute())
