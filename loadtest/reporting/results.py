"""The content of ``results.json``."""

import msgspec

from loadtest.reporting.request_records import WriteAction
from loadtest.reporting.run_facts import RunFacts, StepFacts
from loadtest.reporting.summary import Summary, WriteSummary


class StepResults(msgspec.Struct, frozen=True):
    """The queries that were due in one step of the schedule. Rates are per second of the step."""

    step: StepFacts
    summary: Summary


class Results(msgspec.Struct, frozen=True, kw_only=True):
    """The results of a run. Times are in seconds."""

    run: RunFacts
    total: Summary
    steps: list[StepResults]
    writes: dict[WriteAction, WriteSummary]
