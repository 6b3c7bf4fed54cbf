"""Compositions: whose turn it is to be composed, one request and one step at a time."""

from collections import OrderedDict

from generator.connector.step_jobs import ComposeStep, Composition


class Compositions:
    """Requests whose loads are done and whose KV is to be composed, in order.

    A composition takes part of several steps of the engine. Each step takes one part, so that other requests go on,
    and every rank takes the same one.
    """

    def __init__(self) -> None:
        self._waiting: OrderedDict[str, Composition | None] = OrderedDict()
        self._running: str | None = None
        self._dropped: set[str] = set()

    @property
    def busy(self) -> bool:
        """Whether a composition has not ended. It may outlive its request."""
        return bool(self._running is not None or self._waiting)

    def add(self, request_id: str, composition: Composition | None) -> None:
        """Compose a request once it is its turn. With None, what was loaded for it is given up."""
        self._waiting[request_id] = composition

    def drop(self, request_id: str) -> None:
        """Give a request's composition up, if it has not ended. It still ends, with its own result."""
        if request_id == self._running:
            self._dropped.add(request_id)
        elif request_id in self._waiting:
            self._waiting[request_id] = None

    def next_step(self) -> ComposeStep | None:
        """The part of the engine's next step."""
        if self._running is not None:
            return ComposeStep(self._running, drop=self._running in self._dropped)
        if not self._waiting:
            return None
        self._running, composition = self._waiting.popitem(last=False)
        return ComposeStep(self._running, composition, drop=composition is None)

    def ended(self, request_id: str) -> None:
        """Record the end of a composition."""
        assert request_id == self._running, "another composition ended than the one that runs"
        self._running = None
        self._dropped.discard(request_id)
