"""Composes a prompt's KV out of its documents' own: moves it into place, selects what to compute again, computes it."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import torch

from generator.composing.attention_layers import AttentionLayer, LayerKv, Tokens, slots_of
from generator.composing.deletions import IsDeleted
from generator.composing.partial_forward import AttendedBlocks, PartialForward
from generator.composing.runs import Run, joined, positions_of, slices
from generator.composing.selection.base import ComposedPrompt, Selection, Selector
from generator.connector.blocks.staged_pages import StagedPages, StagedRows
from generator.connector.messages import Composed

_MOVED_AT_ONCE_BYTES = 256 << 20
"""Of pages that come out of host memory to a GPU."""

_MOVED_THERE_AT_ONCE_BYTES = 1 << 30
"""Of pages that are on the GPU. A document alone is moved in less time than it takes to launch the kernels for it."""
_MOVED_FOR_COMPUTED = 16
"""Tokens that are moved in less than the time that computing one takes."""

_MEASUREMENTS = 3


class Donated(NamedTuple):
    """KV of a document as it was computed: its first token was at ``position`` of its prompt.

    In the prompt that is composed, it goes to its ``place``. The ``rows`` are the pages that hold any of the tokens; a
    page begins at a multiple of its tokens. Those of a prompt's documents are side by side, in the same order.
    """

    position: int
    place: Run
    rows: StagedRows

    @property
    def nbytes(self) -> int:
        """The size of its pages."""
        return len(self.rows.numbers) * self.rows.staged.pages.shape[1]


def moved_together(documents: Iterable[Donated], device: torch.device) -> Iterator[list[Donated]]:
    """The documents in groups that are moved at once to a device.

    On a CPU, these are single documents: without a group, their tokens are read where they are.
    """
    group: list[Donated] = []
    taken = 0
    for document in documents:
        if group and taken + document.nbytes > _room(document, device):
            yield group
            group, taken = [], 0
        group.append(document)
        taken += document.nbytes
    if group:
        yield group


def joined_pages(group: Sequence[Donated], device: torch.device) -> torch.Tensor:
    """The pages of documents on a device, shape [pages, page_bytes]."""
    first, last = group[0].rows, group[-1].rows
    return first.staged.pages[first.numbers.start : last.numbers.stop].to(device)


def moves_of(group: Sequence[Donated], page_tokens: int, device: torch.device) -> tuple[Tokens, int | torch.Tensor]:
    """Which tokens of documents' joined pages move, and by how many positions. A page has ``page_tokens`` tokens."""
    tokens = []
    for document in group:
        page = document.rows.numbers.start - group[0].rows.numbers.start
        first = page * page_tokens + document.position % page_tokens
        tokens.append(Run(first, first + document.place.tokens))
    by = [document.place.start - document.position for document in group]
    if len(group) == 1:
        # Consecutive tokens are taken without a copy, and a document that stays in place is not turned.
        return slice(*tokens[0]), by[0]
    counts = torch.tensor([document.place.tokens for document in group])
    return positions_of(tokens, device), torch.tensor(by).repeat_interleave(counts).to(device)


def _room(document: Donated, device: torch.device) -> int:
    if device.type == "cpu":
        return 0
    return _MOVED_THERE_AT_ONCE_BYTES if document.rows.staged.pages.device == device else _MOVED_AT_ONCE_BYTES


class TooFar(Exception):
    """The deviation of a prompt exceeds its bound."""

    def __init__(self, deviation: float, bound: float) -> None:
        super().__init__(f"the KV that was computed again deviates by {deviation:.2f}, more than {bound:.2f}")
        self.deviation = deviation


class Deviation:
    """Measures it in one ``layer``: the length of the difference, relative to that of the fresh keys and values.

    ``over_ranks`` adds up sums of tensor-parallel ranks, so that all find the same.
    """

    def __init__(self, layer: AttentionLayer, over_ranks: Callable[[torch.Tensor], torch.Tensor]) -> None:
        self._layer = layer
        self._over_ranks = over_ranks

    def of(self, prompt: ComposedPrompt, runs: Sequence[Run]) -> Callable[[], float]:
        """Take a copy of ``runs``, which are about to be computed again. The function measures their deviation then."""
        if not runs:
            return lambda: 0.0
        before = self._kv(prompt, runs)

        def since() -> float:
            fresh = self._kv(prompt, runs)
            sums = torch.stack([(fresh - before).square().sum(), fresh.square().sum()])
            difference, length = self._over_ranks(sums).tolist()
            return float((difference / length) ** 0.5) if length else 0.0

        return since

    def _kv(self, prompt: ComposedPrompt, runs: Sequence[Run]) -> torch.Tensor:
        keys, values = prompt.kv(self._layer, runs)
        return torch.cat([keys.flatten(1), values.flatten(1)], 1).float()


class Task(NamedTuple):
    """A prompt to compose up to ``end``. The engine computes what follows, with the question.

    Its first ``exact`` tokens are in place. ``donated`` is the KV of its documents. All other tokens after the exact
    ones are computed. ``method`` names the selector, and ``share`` is how much of the donated tokens it may select. The
    prompt is given up if these tokens deviate by more than ``bound``.
    """

    prompt: ComposedPrompt
    exact: int
    end: int
    donated: Sequence[Donated]
    method: str
    share: float
    bound: float | None = None


class Composer:
    """Composes prompts on an engine's ``layers``, computing at most ``step_tokens`` tokens at a time.

    ``selectors`` choose what is computed again, by name.
    """

    def __init__(
        self,
        layers: Sequence[AttentionLayer],
        forward: PartialForward,
        selectors: Mapping[str, Selector],
        deviation: Deviation,
        page_tokens: int,
        step_tokens: int,
    ) -> None:
        self._layers = layers
        self._forward = forward
        self._selectors = selectors
        self._deviation = deviation
        self.deletions = 0
        """How often documents were deleted."""
        self._page_tokens = page_tokens
        self._step_tokens = step_tokens

    @property
    def methods(self) -> tuple[str, ...]:
        """The names of the selectors."""
        return tuple(self._selectors)

    def forget(self, is_deleted: IsDeleted) -> None:
        """Drop what selectors keep of deleted documents."""
        self.deletions += 1
        for selector in self._selectors.values():
            selector.forget(is_deleted)

    def with_scores(self, prompt: ComposedPrompt, method: str) -> ComposedPrompt:
        """The prompt, whose documents are not in place yet, with what its selector computes beside the engine."""
        selector = self._selectors.get(method)
        return prompt if selector is None else prompt._replace(scores=selector.scores_beside(prompt))

    def close(self) -> None:
        """End what selectors run beside the engine."""
        for selector in self._selectors.values():
            selector.close()

    def steps(self, task: Task) -> Iterator[Composed | None]:
        """Compose a prompt in steps between which the engine may do other work. The last one yields the result.

        Raises TooFar if the prompt exceeds its bound.
        """
        prompt = task.prompt
        documents = prompt.documents
        moved = 0
        for group in moved_together(task.donated, prompt.blocks.device):
            if moved > _MOVED_FOR_COMPUTED * self._step_tokens:
                yield None
                moved = 0
            self._place(group, prompt.blocks)
            moved += sum(document.place.tokens for document in group)
        yield None
        missing = _gaps(task.exact, task.end, documents)
        self._blank(missing, prompt.blocks)
        tokens = sum(document.tokens for document in documents)
        selection = Selection(())
        if documents:
            selection = self._selectors[task.method].select(prompt, int(task.share * tokens))
        selected, attention = selection
        attended = None
        if attention is not None:
            attended = AttendedBlocks(attention, documents, task.share, self._page_tokens)
        deviation_since = self._deviation.of(prompt, selected)
        for part in slices(joined([*selected, *missing]), self._step_tokens):
            yield None
            self._forward.compute(prompt.token_ids, part, prompt.blocks, attended)
        deviation = deviation_since()
        if task.bound is not None and deviation > task.bound:
            raise TooFar(deviation, task.bound)
        recomputed = sum(run.tokens for run in selected)
        yield Composed(tokens - recomputed, recomputed, deviation)

    def measure_move_s(self, staged: StagedPages) -> float:
        """The seconds that moving one token's KV takes, out of ``staged`` pages.

        Writes zeros into as many of the first blocks, so the engine must be idle.
        """
        staged.pages.zero_()
        count = len(staged.pages)
        blocks = torch.arange(1, count + 1, device=self._forward.device)
        place = Run(1, count * self._page_tokens)
        donated = Donated(0, place, StagedRows(staged, range(count)))
        took = []
        for _ in range(_MEASUREMENTS):
            began = time.perf_counter()
            self._place([donated], blocks)
            self._forward.finish()
            took.append(time.perf_counter() - began)
        return min(took) / place.tokens

    def _place(self, group: Sequence[Donated], blocks: torch.Tensor) -> None:
        """Write documents' KV into their places."""
        pages = joined_pages(group, blocks.device)
        tokens, by = moves_of(group, self._page_tokens, blocks.device)
        slots = self._slots([document.place for document in group], blocks)
        for layer in self._layers:
            keys, values = layer.decoded(pages, tokens)
            layer.write(LayerKv(layer.rotation.moved(keys, by), values), slots)

    def _blank(self, runs: Sequence[Run], blocks: torch.Tensor) -> None:
        """Write zeros into what is computed after the selection: its blocks hold what other requests left there."""
        for run in runs:
            slots = self._slots([run], blocks)
            for layer in self._layers:
                one = layer.kv(blocks, torch.zeros(1, dtype=torch.long, device=blocks.device))
                keys, values = (part.new_zeros(run.tokens, *part.shape[1:]) for part in one)
                layer.write(LayerKv(keys, values), slots)

    def _slots(self, runs: Sequence[Run], blocks: torch.Tensor) -> torch.Tensor:
        return slots_of(positions_of(runs, blocks.device), blocks, self._page_tokens)


def _gaps(start: int, end: int, runs: Sequence[Run]) -> list[Run]:
    """What lies between ``start`` and ``end`` outside of ascending ``runs``."""
    borders = [start, *(border for run in runs for border in run), end]
    pairs = zip(borders[::2], borders[1::2], strict=True)
    return [Run(left, right) for left, right in pairs if left < right]
