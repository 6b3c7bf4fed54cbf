"""Documents of which nothing may be kept for now, as they are being deleted."""

from __future__ import annotations


class DeletionBlocklist:
    """Contents by namespace, None for all of them, and how often each is shunned."""

    def __init__(self) -> None:
        self._times: dict[tuple[str | None, str], int] = {}

    def count(self, content: str, namespace: str | None, more: int) -> None:
        """Shun a content so many times more, or less."""
        what = namespace, content
        times = self._times.pop(what, 0) + more
        if times:
            self._times[what] = times

    def has(self, content: str, namespace: str) -> bool:
        """Whether a content is shunned in a namespace."""
        return bool(self._times) and ((None, content) in self._times or (namespace, content) in self._times)
