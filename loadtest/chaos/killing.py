"""The kills as they come, each with its recovery."""

import logging
import time
from collections.abc import Iterator, Sequence

from loadtest.chaos.recovery import Recovery, Watch
from loadtest.chaos.schedule import Planned
from loadtest.chaos.victims import Kill, Victim, Victims

_log = logging.getLogger(__name__)

GIVE_UP_S = 180.0
"""A stack that has not recovered by then does not."""
_LOOK_S = 0.1


class Killing:
    """Kills what is ``planned``: the next one when the stack has recovered, or, ``overlapping``, while it still does.

    ``kills`` has those that there were.
    """

    def __init__(
        self,
        victims: Victims,
        kinds: Sequence[Victim],
        watch: Watch,
        planned: Iterator[Planned],
        overlapping: bool,
    ) -> None:
        self._victims = victims
        self._watch = watch
        self._planned = planned
        self._overlapping = overlapping
        self._least = len(kinds)
        self._counts = {victim: len(victims.alive(victim)) for victim in kinds}
        self._open: list[Recovery] = []
        self.kills: list[Kill] = []

    def go_on(self, seconds: float) -> None:
        """Kill for so long, and until a whole round has come; returns when all has recovered, or will not."""
        end = time.monotonic() + seconds
        while time.monotonic() < end or len(self.kills) < self._least:
            pause_s, victim = next(self._planned)
            if not self._recover(time.monotonic() + pause_s):
                return
            self._kill(victim)
            if not self._overlapping and not self._recover():
                return
        self._recover()

    def _recover(self, until: float | None = None) -> bool:
        """Watch until all is well or until a time, whatever is later without a time; whether there is hope yet."""
        while self._open or until is not None:
            if until is not None and time.monotonic() >= until:
                return True
            if self._open:
                look = self._watch.look()
                for recovery in [each for each in self._open if each.hear(look)]:
                    self._open.remove(recovery)
                    kill = recovery.kill
                    _log.info("%s: recovered after %.1f s", kill.victim, (kill.recovered or 0.0) - kill.at)
                if any(time.monotonic() - recovery.kill.at > GIVE_UP_S for recovery in self._open):
                    return False
            time.sleep(_LOOK_S)
        return True

    def _kill(self, victim: Victim) -> None:
        before = self._watch.look()
        if self._victims.alive(victim):
            kill = self._victims.kill(victim)
            _log.info("%s: process %d gets %s", victim, kill.pid, kill.signal)
            self.kills.append(kill)
            self._open.append(Recovery(kill, self._counts[victim], before, self._victims.alive))
