"""What the replay's check does when its prompts are used up."""

import asyncio

import pytest

from protocol.errors import ConfigError
from ragtree_lab.gpu_proof.benchmark_checks import PairStream, PromptsUsedUp, replayed


class ScriptedReplay:
    """A replay that takes prompts, ``count`` at a time, until ``fails`` or the stream ends."""

    def __init__(self, stream: PairStream, count: int, fails: Exception | None = None) -> None:
        self._stream = stream
        self._count = count
        self._fails = fails
        self.has_results = False

    async def run(self) -> None:
        while True:
            self._stream.take(self._count)
            self.has_results = True
            if self._fails is not None:
                raise self._fails

    def result(self, *, complete: bool) -> tuple[str, bool]:
        return "measured", complete


def test_what_was_measured_before_the_prompts_were_used_up_counts():
    stream = PairStream(documents=4, tokens=3, count=10)
    assert asyncio.run(replayed(ScriptedReplay(stream, 4))) == ("measured", False)
    assert stream.left == 0


def test_a_stream_that_is_too_short_for_any_result_fails():
    with pytest.raises(PromptsUsedUp):
        asyncio.run(replayed(ScriptedReplay(PairStream(documents=4, tokens=3, count=10), 11)))


def test_other_failures_are_not_taken_for_a_short_stream():
    failing = ScriptedReplay(PairStream(documents=4, tokens=3, count=10), 4, ConfigError("another one"))
    with pytest.raises(ConfigError, match="another one"):
        asyncio.run(replayed(failing))
