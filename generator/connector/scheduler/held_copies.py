"""Which offers load within the step that computes what follows them."""

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from generator.connector.scheduler.planned_request import PlannedRequest
from generator.connector.scheduler.transfer_queue import LostCopies
from generator.connector.step_jobs import Load
from protocol.kv import LostCopy, Pages
from protocol.tiers import Tier


class HostCopies(Protocol):
    """Holds copies in host memory until the next step has loaded them."""

    @property
    def busy(self) -> bool:
        """Whether what earlier steps load is still held."""

    def has_room(self, pages: int) -> bool:
        """Whether the next step can load so many pages more."""

    def hold(self, request_id: str, copies: Mapping[str, Pages]) -> Sequence[str] | None:
        """Hold a request's copies, by node. Returns those that are not there; if there are any, it holds none.

        Returns None if nothing can be held now.
        """

    def keep(self, request_ids: Collection[str]) -> None:
        """Let go of what other requests hold."""


class HeldCopies:
    """Holds what requests load out of host memory, and queues these loads for the next step.

    Copies that are not there go to ``lost``. Unless ``bind`` has been called, all loads from host memory run in the
    background.
    """

    def __init__(self, lost: LostCopies) -> None:
        self._lost = lost
        self._host: HostCopies | None = None
        self._loads: list[Load] = []

    def bind(self, host: HostCopies) -> None:
        """Take the host memory of the worker side in this process."""
        self._host = host

    def hold(self, state: PlannedRequest) -> bool:
        """Hold what a request's offer reads, if all of it can load within the step. Returns whether the offer stands.

        If not, the request knows what is missing, and makes another one.
        """
        copies = state.copies_in_host()
        if self._host is None or not copies:
            return True
        if not self._host.has_room(sum(len(pages.numbers) for pages in copies.values())):
            return True
        keys = self._host.hold(state.request.request_id, copies)
        if keys is None:
            return True
        missing = [LostCopy(key, Tier.HOST) for key in keys]
        state.missing.update(missing)
        self._lost.add(*missing)
        state.within_step = not missing
        return not missing

    @property
    def busy(self) -> bool:
        """Whether the engine should keep stepping, so that what it has copied is let go."""
        return self._host is not None and self._host.busy

    def add(self, load: Load) -> None:
        """Queue a load of held copies."""
        self._loads.append(load)

    def take(self) -> list[Load]:
        """The loads of the next step. What else is held is let go: vLLM has not scheduled its requests."""
        loads, self._loads = self._loads, []
        if self._host is not None:
            self._host.keep([load.request_id for load in loads])
        return loads
