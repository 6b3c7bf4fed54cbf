"""Decide when a stack has recovered from a kill."""

from collections.abc import Callable, Sequence

from ragtree_lab.chaos.stack_monitor import StackStatus
from ragtree_lab.chaos.victims import Kill, Victim

STEADY_CHECKS = 8
"""This many checks in a row must succeed, because the proxy chooses a gateway for each at random."""


class Recovery:
    """Waits for a successor of the killed process, readiness, all instances, and an answer.

    ``count`` processes of the victim's kind must run, as reported by ``alive``. ``before`` is a status from before the
    kill.
    """

    def __init__(self, kill: Kill, count: int, before: StackStatus, alive: Callable[[Victim], Sequence[int]]) -> None:
        self.kill = kill
        self._count = count
        self._before = before
        self._alive = alive
        self._steady: list[StackStatus] = []

    def update(self, status: StackStatus) -> bool:
        """Return whether the stack has recovered. If so, the kill has the times of its first and last good check."""
        well = status.begun > self.kill.at and status.answered and self._replaced(status)
        self._steady = [*self._steady, status] if well else []
        if len(self._steady) < STEADY_CHECKS:
            return False
        self.kill.recovered, self.kill.confirmed = self._steady[0].ended, self._steady[-1].ended
        return True

    def _replaced(self, status: StackStatus) -> bool:
        if self.kill.victim is Victim.GENERATOR and status.instances == self._before.instances:
            # The controller has not noticed the loss yet.
            return False
        running = set(self._alive(self.kill.victim))
        if self.kill.victim is not Victim.REDIS_HANGS:
            running.discard(self.kill.pid)
        return len(running) >= self._count
