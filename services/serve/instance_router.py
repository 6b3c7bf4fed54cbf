"""Routes each call of the generator to the replica that it names. One replica is one instance.

The controller chooses the instance of a plan, so Serve's own choice by load does not apply. A call names its instance
in Serve's multiplexed model id, which is Serve's way to name something that only some replicas have.
"""

import asyncio
from collections import deque
from typing import Any

from ray.serve.request_router import PendingRequest, RequestRouter, RunningReplica

from services.serve.caller import set_replicas


class InstanceRouter(RequestRouter):  # type: ignore[misc]  # Ray has no types
    """Serve's router in each process that calls the generator: to the named replica, or to any if none is named.

    A call that names a replica that is gone goes to another one, which raises EngineDied. With no candidate at all,
    Serve would let the call wait for ever.
    """

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """Return the replica that the request names, or all candidates."""
        named = pending_request.metadata.multiplexed_model_id if pending_request is not None else ""
        chosen = [replica for replica in candidate_replicas if replica.replica_id.unique_id == named]
        return [chosen or candidate_replicas]

    def _fulfill_next_pending_request(
        self,
        replica: RunningReplica,
        request_metadata: Any = None,  # noqa: ANN401, ARG002 - Serve's
    ) -> None:
        """Give a replica to the call that it was chosen for.

        Serve's own code finds the call by the id of the enclosing request. Several concurrent calls of one request
        share that id, so all but the first would wait for ever.
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

        Serve's own code forgets a call that names a model only when it looks for another call for that model. This
        router never does, so every plan's call, with its prompt, would be kept for ever.
        """
        super()._remove_pending_request_from_indices(pending_request)
        named = pending_request.metadata.multiplexed_model_id
        calls = self._pending_requests_by_model_id.pop(named, ())
        waiting = deque(call for call in calls if call is not pending_request)
        if waiting:
            self._pending_requests_by_model_id[named] = waiting

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        """Take over Serve's list of replicas."""
        super().update_replicas(replicas)
        set_replicas(self.app_name, [replica.replica_id.unique_id for replica in replicas])
