"""The generator's instances as the controller knows them: how they come, restart, retire and end."""

from collections.abc import Sequence, Set

from cachectl.runtime.deliveries import Deliveries
from cachectl.runtime.leases import Leases
from cachectl.runtime.recovery import Recovery
from cachectl.scheduling.scheduler import Scheduler
from protocol.cache import RestoreResult
from protocol.kv import ResidencyReport


class InstanceRegistry:
    """Adds, restarts and retires instances, and moves the requests that wait for them.

    ``boots`` maps each instance to the current life of its engine; plans carry it. ``failed`` counts the plans that
    ended with their instance.
    """

    def __init__(self, scheduler: Scheduler, leases: Leases, recovery: Recovery, deliveries: Deliveries) -> None:
        self._scheduler = scheduler
        self._tree = scheduler.tree
        self._leases = leases
        self._recovery = recovery
        self._deliveries = deliveries
        self.boots: dict[str, str] = {}
        self.failed = 0

    @property
    def retired(self) -> Set[str]:
        """Instances that get no new requests and have not ended yet."""
        return self._tree.tiers.retired

    @property
    def sharing(self) -> Set[str]:
        """Instances that get requests and reach the shared tiers."""
        return self._scheduler.instances.sharing

    @property
    def shared(self) -> str:
        """The name of the host memory and disk that instances share."""
        return self._recovery.shared

    def add(
        self, instance: str, boot: str, reports: Sequence[ResidencyReport], isolated: bool = False
    ) -> RestoreResult:
        """Let an instance take requests. Its engine is in the life ``boot``, and its tiers hold what they report.

        An ``isolated`` instance reaches no shared tier, and reports none. Raises what ``Recovery.restore`` raises; the
        instance is then added with empty tiers.
        """
        self.boots[instance] = boot
        self._scheduler.lifecycle.add(instance, isolated)
        try:
            return self._recovery.restore(reports)
        finally:
            self._leases.move_on()
            self._deliveries.start()

    def restart(
        self, instance: str, boot: str, reports: Sequence[ResidencyReport], isolated: bool = False
    ) -> RestoreResult:
        """Replace an instance by its next life ``boot``. Its GPU holds what it reports and nothing else.

        Plans that ran there have failed, and their leases end. Requests that waited for it wait again, and it takes
        requests even if it was retired. Raises UnknownInstance, and what ``Recovery.restore`` raises; in the second
        case the instance has restarted with empty tiers.
        """
        failed, waiting = self._leases.restart(instance, isolated)
        # Before anything can be refused: a bad report must not restart the instance again at every look.
        self.boots[instance] = boot
        self.failed += failed
        self._deliveries.discard_missed(instance)
        try:
            return self._recovery.restore(reports)
        finally:
            self._leases.wait_again(waiting)
            self._leases.move_on()
            self._deliveries.start()

    def retire(self, instance: str) -> None:
        """Give an instance no new requests, and forget it when its running requests have ended.

        Requests that wait for it move to another instance, as soon as there is one. Raises UnknownInstance.
        """
        self._scheduler.lifecycle.retire(instance)
        self._leases.move_on()
        self.forget_ended()

    def reinstate(self, instance: str) -> None:
        """Let a retired instance that has not ended take requests again. Raises UnknownInstance."""
        self._leases.reinstate(instance)
        self._leases.move_on()
        self._deliveries.start()

    def replace_shared(self, shared: str) -> None:
        """Forget what the shared tiers held, because no instance reaches them. ``shared`` names their successors."""
        self._tree.lose_shared()
        self._scheduler.reprioritise()
        self._recovery.shared = shared

    def forget_ended(self) -> None:
        """Remove retired instances whose requests have all ended."""
        for instance in self._scheduler.lifecycle.ended():
            self._scheduler.lifecycle.remove(instance)
            self._deliveries.discard_missed(instance)
            self.boots.pop(instance, None)
