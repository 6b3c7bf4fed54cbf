"""Composes a prompt's KV out of its documents' own: moves it into place, selects what to compute again, computes it."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import torch

from generator.composing.attention_layers import AttentionLayer
from generator.composing.auxiliary.document_cache import DocumentCache
from generator.composing.codec import LayerKv
from generator.composing.composed_prompt import ComposedPrompt, Content
from generator.composing.deviation import Deviation, TooFar
from generator.composing.partial_forward import PartialForward
from generator.composing.runs import Run, joined, slices
from generator.composing.selection.base import Selector
from generator.composing.slots import slots_of

_MEASURED_PAGES = 8
_MEASUREMENTS = 3


class Donated(NamedTuple):
    """KV of the document ``content`` as it was computed: its first token was at ``position``, now at ``place.start``.

    ``pages`` [pages, page_bytes] are those that hold any of the tokens; a page begins at a multiple of its tokens.
    """

    content: Content
    place: Run
    position: int
    pages: torch.Tensor


class Task(NamedTuple):
    """A prompt to compose in an engine's ``blocks``, up to its last token, which the engine computes.

    Its first ``exact`` tokens are in place. Each document behind them is ``donated``, or computed in full. ``method``
    names the selector, and ``share`` is how much of the donated tokens it may select. The prompt is given up if these
    tokens deviate by more than ``bound``. ``deletions`` is what the composer had when the task came up.
    """

    token_ids: torch.Tensor
    blocks: torch.Tensor
    exact: int
    donated: Sequence[Donated]
    question: Run
    method: str
    share: float
    bound: float | None = None
    deletions: int = 0


class Composed(NamedTuple):
    """Result: the numbers of donated tokens ``reused`` and ``recomputed``, and the ``deviation`` of the latter."""

    reused: int
    recomputed: int
    deviation: float


class Composer:
    """Composes prompts on an engine's ``layers``, computing at most ``step_tokens`` tokens at a time."""

    def __init__(
        self,
        layers: Sequence[AttentionLayer],
        forward: PartialForward,
        selectors: Mapping[str, Selector],
        deviation: Deviation,
        kept: DocumentCache,
        page_tokens: int,
        step_tokens: int,
    ) -> None:
        self._layers = layers
        self._forward = forward
        self._selectors = selectors
        self._deviation = deviation
        self._kept = kept
        self._page_tokens = page_tokens
        self._step_tokens = step_tokens

    @property
    def methods(self) -> tuple[str, ...]:
        """The names of the selectors."""
        return tuple(self._selectors)

    @property
    def deletions(self) -> int:
        """How often documents were deleted."""
        return self._kept.deletions

    def forget(self, is_deleted: Callable[[str, tuple[str, ...]], bool]) -> None:
        """Drop what selectors keep of deleted documents, by namespace and path. May be called from any thread."""
        self._kept.forget(is_deleted)

    def steps(self, task: Task) -> Iterator[Composed | None]:
        """Compose a prompt in steps between which the engine may do other work. The last one yields the result.

        Raises TooFar if the prompt exceeds its bound.
        """
        for donated in task.donated:
            self._place(donated, task.blocks)
            yield None
        documents = [donated.place for donated in task.donated]
        contents = [donated.content for donated in task.donated]
        prompt = ComposedPrompt(task.token_ids, task.blocks, documents, task.question, contents, task.deletions)
        tokens = sum(document.tokens for document in documents)
        selected = self._selectors[task.method].select(prompt, int(task.share * tokens)) if documents else []
        before = self._deviation.before(prompt, selected)
        missing = _gaps(task.exact, task.question.end, documents)
        for part in slices(joined([*selected, *missing]), self._step_tokens):
            yield None
            self._forward.compute(task.token_ids, part, task.blocks)
        deviation = self._deviation.since(before, prompt)
        if task.bound is not None and deviation > task.bound:
            raise TooFar(deviation, task.bound)
        recomputed = sum(run.tokens for run in selected)
        yield Composed(tokens - recomputed, recomputed, deviation)

    def measure_move_s(self, page_bytes: int) -> float:
        """The seconds that moving one token's KV takes. Writes into the first blocks, so the engine must be idle."""
        blocks = torch.arange(1, _MEASURED_PAGES + 1, device=self._forward.device)
        pages = torch.zeros((_MEASURED_PAGES, page_bytes), dtype=torch.uint8, device=self._forward.device)
        tokens = (_MEASURED_PAGES - 1) * self._page_tokens
        donated = Donated(Content("", ""), Run(1, 1 + tokens), 0, pages)
        took = []
        for _ in range(_MEASUREMENTS):
            began = time.perf_counter()
            self._place(donated, blocks)
            took.append(time.perf_counter() - began)
        return min(took) / tokens

    def _place(self, donated: Donated, blocks: torch.Tensor) -> None:
        """Write a document's KV into its place."""
        place, size = donated.place, self._page_tokens
        first = donated.position % size
        tokens = range(first, first + place.tokens)
        positions = torch.arange(place.start, place.end, device=blocks.device)
        slots = slots_of(positions, blocks, size)
        for layer in self._layers:
            keys, values = layer.decoded(donated.pages, tokens)
            moved = layer.rotation.moved(keys, place.start - donated.position)
            layer.write(LayerKv(moved, values), slots)


def _gaps(start: int, end: int, runs: Sequence[Run]) -> list[Run]:
    """What lies between ``start`` and ``end`` outside of ascending ``runs``."""
    borders = [start, *(border for run in runs for border in run), end]
    pairs = zip(borders[::2], borders[1::2], strict=True)
    return [Run(left, right) for left, right in pairs if left < right]
