"""Carries out orders that come outside of any plan."""

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import uuid4

from generator.connector.messages import RequestMessage
from generator.engines.vllm_requests import VllmRequests
from generator.engines.vllm_sampling import sampling_params
from protocol.errors import RagtreeError, Unavailable
from protocol.generation import Sampling
from protocol.kv import LostCopy, Orders, ResidencyReport

if TYPE_CHECKING:
    from generator.connector.report_router import ReportRouter

T = TypeVar("T")


class VllmOrders:
    """Sends orders and inquiries to the connector. Without a ``router`` there is none, only vLLM's own prefix cache."""

    def __init__(self, requests: VllmRequests, router: "ReportRouter | None") -> None:
        self._requests = requests
        self._router = router

    async def carry_out(self, orders: Orders) -> tuple[LostCopy, ...]:
        """Carry out orders to their end. Returns the copies that should have been made and were not.

        Without the connector, any deletion empties vLLM's prefix cache, because vLLM does not know which of its blocks
        hold a document; running requests are computed again. Raises Unavailable if a deletion fails.
        """
        if self._router is None:
            if orders.forget or orders.everything:
                await self._empty_prefix_cache()
            return ()
        name = f"orders-{uuid4().hex}"
        return await self._send(RequestMessage(name, orders=orders), self._router.carried_out(name))

    async def residency(self) -> tuple[ResidencyReport, ...]:
        """What the tiers report to hold; nothing without the connector."""
        if self._router is None:
            return ()
        name = f"inquiry-{uuid4().hex}"
        return await self._send(RequestMessage(name, inquire=True), self._router.held(name))

    async def _send(self, message: RequestMessage, answer: "asyncio.Future[T]") -> T:
        """Send a message with a one-token request, the only way into vLLM's scheduler, and wait for its answer.

        The connector takes the message when the request arrives, so orders pass the queue. The request itself may still
        be waiting in it when the answer comes. It is aborted then.
        """
        carrier = asyncio.create_task(self._carry(message))
        try:
            either: list[asyncio.Future[Any]] = [carrier, answer]
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                await carrier
            await self._requests.wait_alive(answer)
            return answer.result()
        finally:
            answer.cancel()
            carrier.cancel()
            await asyncio.gather(carrier, return_exceptions=True)

    async def _carry(self, message: RequestMessage) -> None:
        parameters = sampling_params(Sampling(max_tokens=1))
        parameters.extra_args = {"kv_transfer_params": message.as_parameters()}
        async with contextlib.aclosing(self._requests.generate(message.name, [0], message.name, parameters)) as outputs:
            async for _ in outputs:
                pass

    async def _empty_prefix_cache(self) -> None:
        try:
            emptied = await self._requests.empty_prefix_cache()
        except RagtreeError:
            raise
        except Exception as error:
            # vLLM raises nothing more specific.
            raise Unavailable(f"vLLM could not empty its prefix cache: {error}") from error
        if not emptied:
            raise Unavailable("vLLM did not empty its prefix cache")
