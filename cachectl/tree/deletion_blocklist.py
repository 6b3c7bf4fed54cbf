"""Documents of which nothing may be kept for now, because they are being deleted."""

from __future__ import annotations


class DeletionBlocklist:
    """Contents by namespace (None for all namespaces), with the number of deletions that block each."""

    def __init__(self) -> None:
        self._deletions: dict[tuple[str | None, str], int] = {}

    def block(self, content: str, namespace: str | None) -> None:
        """Block a content for one more deletion."""
        self._deletions[namespace, content] = self._deletions.get((namespace, content), 0) + 1

    def unblock(self, content: str, namespace: str | None) -> None:
        """End one deletion's block of a content."""
        deletions = self._deletions.pop((namespace, content)) - 1
        if deletions:
            self._deletions[namespace, content] = deletions

    def blocks(self, content: str, namespace: str) -> bool:
        """Whether a content is blocked in a namespace."""
        return bool(self._deletions) and ((None, content) in self._deletions or (namespace, content) in self._deletions)
