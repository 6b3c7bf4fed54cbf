"""Runs checks one after another."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Protocol

import structlog

from cachectl.runtime.composing import GateFolder
from examine.doctor.checks.drafts import Drafts
from examine.doctor.checks.engines import CachingEngine, ComposedReuse, HostSize, PlainEngine
from examine.doctor.checks.exact_answers import ExactAnswers
from examine.doctor.checks.failing_load import FailingLoad
from examine.doctor.checks.first_tokens import Bandwidths, FirstTokens
from examine.doctor.checks.machine import Instructions, OtherWork, Preloads
from examine.doctor.checks.model import Model
from examine.doctor.checks.object_store import ObjectStore
from examine.doctor.checks.restart import Restart
from examine.doctor.checks.space import Disk, HostMemory, Memory
from examine.doctor.checks.versions import InstalledPackages, Versions
from examine.doctor.context import Context
from examine.doctor.outcome import CheckResult, Diagnosis, Outcome, Status
from examine.measuring import Progress
from protocol.errors import RagtreeError

log = structlog.get_logger(__name__)

_LONGEST_CHECK_S = 1800.0


class Check(Protocol):
    """One thing to find out. It runs only if all checks named in ``needs``, which run earlier, did not fail."""

    @property
    def name(self) -> str:
        """The check's name, for people and programs."""

    @property
    def needs(self) -> tuple[str, ...]:
        """The names of the checks whose findings this one uses."""

    async def run(self, context: Context) -> Outcome:
        """Find out, and leave in ``context`` what later checks need. An error that it raises is a failure."""


class Examination:
    """Runs ``checks`` in order. A check that fails, or takes longer than ``longest_s``, does not stop the others."""

    def __init__(self, checks: Sequence[Check], longest_s: float = _LONGEST_CHECK_S) -> None:
        self._checks = checks
        self._longest_s = longest_s

    async def run(self, context: Context, progress: Progress) -> Diagnosis:
        """Run all checks; ``progress`` is called with (step, done, total). No engine is left running."""
        results: dict[str, CheckResult] = {}
        try:
            for done, check in enumerate(self._checks):
                progress("checks", done, len(self._checks))
                outcome = await self._outcome(check, context, results)
                results[check.name] = CheckResult(check.name, *outcome)
            progress("checks", len(self._checks), len(self._checks))
        finally:
            await context.engine.close()
        return Diagnosis.of(results.values())

    async def _outcome(self, check: Check, context: Context, results: Mapping[str, CheckResult]) -> Outcome:
        missing = [name for name in check.needs if results[name].status in (Status.FAILED, Status.SKIPPED)]
        if missing:
            return Outcome.skipped(f"it needs the check {missing[0]!r}")
        try:
            async with asyncio.timeout(self._longest_s):
                return await check.run(context)
        except TimeoutError:
            return Outcome.failed(f"it did not end within {self._longest_s:g} s")
        except RagtreeError as error:
            return Outcome.failed(str(error))
        except Exception as error:
            # One failing check does not stop the others.
            log.exception("check_failed", check=check.name)
            return Outcome.failed(f"{type(error).__name__}: {error}")


def standard_checks(gates: GateFolder) -> list[Check]:
    """Return them. Those that start engines follow those that only look."""
    return [
        Versions(InstalledPackages()),
        OtherWork(),
        Instructions(),
        Preloads(),
        HostMemory(),
        Disk(),
        ObjectStore(),
        Model(),
        Memory(),
        PlainEngine(),
        CachingEngine(),
        HostSize(),
        ComposedReuse(gates),
        ExactAnswers(),
        FailingLoad(),
        FirstTokens(),
        Bandwidths(),
        Restart(),
        Drafts(),
    ]
