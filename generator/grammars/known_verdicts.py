"""The verdicts on schemas that were tried lately."""

from collections import OrderedDict

from generator.grammars.messages import Verdict

_ENTRY_BYTES = 4096
"""Weighs entries without a compiled grammar, which are few bytes here."""


class KnownVerdicts:
    """Verdicts by digest, the least recently used of which are forgotten.

    They weigh as much as their compiled grammars, up to ``most_bytes`` in all. If that is less than the engine's own
    cache of grammars holds, a schema with a verdict here costs the engine no second compilation.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._bytes = 0
        self._verdicts: OrderedDict[bytes, Verdict] = OrderedDict()

    def find(self, digest: bytes) -> Verdict | None:
        """The verdict, which counts as used now."""
        if digest in self._verdicts:
            self._verdicts.move_to_end(digest)
        return self._verdicts.get(digest)

    def add(self, digest: bytes, verdict: Verdict) -> None:
        """Remember a verdict that is not known yet."""
        self._verdicts[digest] = verdict
        self._bytes += _weight(verdict)
        while self._bytes > self._most_bytes:
            _, forgotten = self._verdicts.popitem(last=False)
            self._bytes -= _weight(forgotten)


def _weight(verdict: Verdict) -> int:
    return _ENTRY_BYTES + verdict.compiled_bytes
