"""Kill processes one after another and wait for recoveries."""

import logging
import time
from collections.abc import Iterator, Sequence

from ragtree_lab.chaos.kill_schedule import PlannedKill
from ragtree_lab.chaos.recovery import Recovery
from ragtree_lab.chaos.stack_monitor import StackMonitor
from ragtree_lab.chaos.victims import Kill, Victim, Victims

_log = logging.getLogger(__name__)

GIVE_UP_S = 180.0
"""A recovery that takes longer counts as failed."""
_CHECK_EVERY_S = 0.1


class Killer:
    """Kills the ``planned`` processes, each when the stack has recovered or, if ``overlapping``, during the recovery.

    ``kills`` lists the kills so far.
    """

    def __init__(
        self,
        victims: Victims,
        kinds: Sequence[Victim],
        monitor: StackMonitor,
        planned: Iterator[PlannedKill],
        overlapping: bool,
    ) -> None:
        self._victims = victims
        self._monitor = monitor
        self._planned = planned
        self._overlapping = overlapping
        self._minimum = len(kinds)
        self._counts = {victim: len(victims.alive(victim)) for victim in kinds}
        self._open: list[Recovery] = []
        self.kills: list[Kill] = []

    def run(self, seconds: float) -> None:
        """Kill for this long, and at least one full round. Returns when the stack has recovered, or has failed to."""
        end = time.monotonic() + seconds
        while time.monotonic() < end or len(self.kills) < self._minimum:
            pause_s, victim = next(self._planned)
            if not self._recover(time.monotonic() + pause_s):
                return
            self._kill(victim)
            if not self._overlapping and not self._recover():
                return
        self._recover()

    def _recover(self, until: float | None = None) -> bool:
        """Wait for all recoveries, or until the given time. Return False if one has taken too long."""
        while self._open or until is not None:
            if until is not None and time.monotonic() >= until:
                return True
            if self._open:
                status = self._monitor.check()
                for recovery in [each for each in self._open if each.update(status)]:
                    self._open.remove(recovery)
                    kill = recovery.kill
                    _log.info("%s: recovered after %.1f s", kill.victim, (kill.recovered or 0.0) - kill.at)
                if any(time.monotonic() - recovery.kill.at > GIVE_UP_S for recovery in self._open):
                    return False
            time.sleep(_CHECK_EVERY_S)
        return True

    def _kill(self, victim: Victim) -> None:
        before = self._monitor.check()
        if self._victims.alive(victim):
            kill = self._victims.kill(victim)
            _log.info("%s: process %d gets %s", victim, kill.pid, kill.signal)
            self.kills.append(kill)
            self._open.append(Recovery(kill, self._counts[victim], before, self._victims.alive))
