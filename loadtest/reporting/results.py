"""Everything that a report says, as ``results.json`` has it."""

import msgspec

from loadtest.reporting.records import WriteAction
from loadtest.reporting.run_facts import RunFacts, StepFacts
from loadtest.reporting.summary import Summary, WriteSummary


class StepResults(msgspec.Struct, frozen=True):
    """The queries that were due in one step of the schedule, whenever they ended; rates are over the step's time."""

    step: StepFacts
    summary: Summary


class Results(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of a run. Times are seconds."""

    run: RunFacts
    total: Summary
    steps: list[StepResults]
    writes: dict[WriteAction, WriteSummary]
