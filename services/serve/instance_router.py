"""Which replica of the generator a call goes to: each is an instance that plans name.

The controller decides on an instance, so Serve's own choice by load is of no use for plans. A call that names one
carries the name as Serve's multiplexed model id: Serve's word for what only some of the replicas have.
"""

import asyncio
from collections import deque
from typing import Any

from ray.serve.request_router import PendingRequest, RequestRouter, RunningReplica

from services.serve.membership import note


class InstanceRouter(RequestRouter):  # type: ignore[misc]  # Ray has no types
    """Serve's router in each process that calls the generator: to the replica that is named, or else to any.

    Where the named one is gone another gets the call, and says so: that is an error within milliseconds, where no
    choice would be a call that waits for ever.
    """

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """The one that the request names, or all."""
        named = pending_request.metadata.multiplexed_model_id if pending_request is not None else ""
        chosen = [replica for replica in candidate_replicas if replica.replica_id.unique_id == named]
        return [chosen or candidate_replicas]

    def _fulfill_next_pending_request(
        self,
        replica: RunningReplica,
        request_metadata: Any = None,  # noqa: ANN401, ARG002 - Serve's
    ) -> None:
        """Give a replica to the call that it was chosen for.

        Serve's own code finds that by the id of the request within which it is made. Several that are made within one
        at once have that in common: all but the first would wait for ever.
        """
        routing = asyncio.current_task()
        for call in self._pending_requests_to_fulfill:
            if self._routing_task_by_pending_request_future.get(call.future) is routing and not call.future.done():
                self._record_queue_wait_time(call)
                call.future.set_result(replica)
                self._remove_pending_request_from_indices(call)
                return

    def _remove_pending_request_from_indices(self, pending_request: PendingRequest) -> None:
        """Forget a call that has its replica.

        Serve's own code forgets what names a model when it looks for another call for that model. Nobody does here, and
        the call of each plan, its prompt and all, would be kept for ever.
        """
        super()._remove_pending_request_from_indices(pending_request)
        named = pending_request.metadata.multiplexed_model_id
        calls = self._pending_requests_by_model_id.pop(named, ())
        waiting = deque(call for call in calls if call is not pending_request)
        if waiting:
            self._pending_requests_by_model_id[named] = waiting

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        """Hear from Serve which replicas there are."""
        super().update_replicas(replicas)
        note(self.app_name, [replica.replica_id.unique_id for replica in replicas])
