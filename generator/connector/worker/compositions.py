"""Composes requests' KV on the engine's own thread, one step at a time."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import msgspec
import torch

from generator.composing.composer import Composer, Donated, Task, TooFar
from generator.composing.dependency.tree_composer import TreeComposer, TreeTask
from generator.composing.runs import Run
from generator.composing.selection.base import ComposedPrompt, Content
from generator.connector.blocks.staged_pages import StagedRows
from generator.connector.messages import NOT_COMPOSED, Composed
from generator.connector.step_jobs import ComposeStep, Composition, CompositionResult, DonorPages, Purge
from generator.connector.worker.tier_jobs import warn
from protocol.dependency import DependencyTrees

_SCRATCH = 0
"""vLLM's null block, which no request's KV is in: selectors write to it."""

_FAILED = CompositionResult(failed=True)


class Ended(NamedTuple):
    """The end of a request's composition. After a failure, the engine computes what is in the ``failed`` blocks."""

    request_id: str
    result: CompositionResult
    failed: set[int]


@dataclass
class _State:
    """A request's composition from the beginning of its load on.

    - ``prompt``: as it was when the load began, and ``deletions``: how often documents with trees had been deleted.
    - ``staged``: the pages of donors, by the positions that their documents start at.
    - ``failed``: the blocks before what is to be composed that could not be loaded; None before the load ends.
    - ``steps``: those of the composition, once it runs, and ``unusable``: its blocks, of no use if it fails.
    """

    prompt: ComposedPrompt
    deletions: int
    staged: dict[int, StagedRows] = field(default_factory=dict)
    failed: set[int] | None = None
    steps: Iterator[Composed | None] = field(default_factory=lambda: iter(()))
    unusable: set[int] = field(default_factory=set)


class Compositions:
    """Takes the steps of compositions out of what has been read for them. ``composer`` has the engine's model.

    For each, ``expect`` comes first, then ``stage`` for all its donors, then ``loaded``; the last two on any thread.
    ``trees`` composes dependency trees; without it, no request may have any.
    """

    def __init__(self, composer: Composer, trees: TreeComposer | None, page_tokens: int, device: torch.device) -> None:
        self._composer = composer
        self._trees = trees
        self._page_tokens = page_tokens
        self._device = device
        self._states: dict[str, _State] = {}

    def expect(self, request_id: str, composition: Composition) -> None:
        """Note that a request's load begins, with donors that may turn out to be missing.

        If the selector does not need the engine, it begins now.
        """
        token_ids, question = composition.token_ids, composition.question
        if composition.trees is not None:
            # The selection in the documents does not depend on the trees, which are computed afterwards.
            question = composition.trees.start
            token_ids = token_ids[:question] + token_ids[composition.trees.end :]
        prompt = ComposedPrompt(
            torch.tensor(token_ids, device=self._device),
            torch.tensor([*composition.blocks, _SCRATCH], device=self._device),
            _documents(composition.donors),
            Run(question, len(token_ids)),
            _contents(composition.donors),
            self._composer.deletions,
        )
        if composition.recompute is not None:
            prompt = self._composer.with_scores(prompt, composition.recompute.method)
        self._states[request_id] = _State(prompt, 0 if self._trees is None else self._trees.kept.deletions)

    def forget(self, purge: Purge) -> None:
        """Drop what is kept of deleted documents."""
        self._composer.forget(purge.covers)
        if self._trees is not None:
            self._trees.kept.forget(purge.covers)

    def stage(self, request_id: str, rows: dict[int, StagedRows]) -> None:
        """Take what was read of some of a request's donors, by the positions that their documents start at."""
        self._states[request_id].staged.update(rows)

    def loaded(self, request_id: str, failed: set[int]) -> None:
        """Take the end of a request's load, with the blocks that could not be loaded."""
        self._states[request_id].failed = failed

    def close(self) -> None:
        """End what runs beside the engine."""
        self._composer.close()

    def take(self, step: ComposeStep) -> Ended | None:
        """Take a step. Returns the end of the composition, if this was its last step.

        A step of a composition that has ended is ignored: with asynchronous scheduling, it was ordered before that was
        known.
        """
        state = self._states.get(step.request_id)
        if state is None or state.failed is None:
            return None
        if step.drop:
            return self._end(step.request_id, _FAILED)
        try:
            if step.composition is not None:
                self._begin(state, step.composition)
            composed = next(state.steps)
        except TooFar as error:
            state.failed |= state.unusable
            return self._end(step.request_id, CompositionResult(_gave_up(error), failed=True))
        except Exception as error:
            # After any error, the request goes on and is computed.
            warn("kv_not_composed", error, request=step.request_id)
            state.failed |= state.unusable
            return self._end(step.request_id, _FAILED)
        return None if composed is None else self._end(step.request_id, CompositionResult(composed))

    def _begin(self, state: _State, composition: Composition) -> None:
        state.unusable = set(composition.blocks[composition.exact // self._page_tokens :])
        if composition.trees is None:
            state.steps = self._composer.steps(_task(state, composition))
        else:
            # Tokens before the trees that could not be loaded are computed with them.
            state.failed = set()
            state.steps = self._with_trees(state, composition, composition.trees)

    def _with_trees(self, state: _State, composition: Composition, trees: DependencyTrees) -> Iterator[Composed | None]:
        """Compose the documents before trees, if they have donors, and then the trees."""
        assert self._trees is not None, "the engine has no attention within trees"
        exact, documents = composition.exact, NOT_COMPOSED
        if composition.donors:
            try:
                for composed in self._composer.steps(_task(state, replace(composition, end=trees.start))):
                    if composed is None:
                        yield None
                    else:
                        exact, documents = trees.start, composed
            except TooFar as error:
                # The trees' own steps compute the documents.
                documents = _gave_up(error)
        token_ids = torch.tensor(composition.token_ids, device=self._device)
        task = TreeTask(composition.namespace, token_ids, state.prompt.blocks, exact, trees, state.deletions)
        for composed in self._trees.steps(task):
            yield composed and msgspec.structs.replace(documents, reused=documents.reused + composed.reused)

    def _end(self, request_id: str, result: CompositionResult) -> Ended:
        state = self._states.pop(request_id)
        if state.prompt.scores is not None:
            state.prompt.scores.cancel()
        return Ended(request_id, result, state.failed or set())


def _task(state: _State, composition: Composition) -> Task:
    donors, recompute = composition.donors, composition.recompute
    assert recompute is not None, "it is not known which donated tokens are computed again"
    staged, state.staged = state.staged, {}
    return Task(
        # Without the donors that have turned out to be missing.
        state.prompt._replace(documents=_documents(donors), contents=_contents(donors)),
        composition.exact,
        composition.end,
        [Donated(donor.source.prefix_tokens, Run(donor.start, donor.end), staged[donor.start]) for donor in donors],
        recompute.method,
        recompute.share,
        recompute.bound,
    )


def _gave_up(error: TooFar) -> Composed:
    return msgspec.structs.replace(NOT_COMPOSED, deviation=error.deviation)


def _documents(donors: Sequence[DonorPages]) -> list[Run]:
    return [Run(donor.start, donor.end) for donor in donors]


def _contents(donors: Sequence[DonorPages]) -> list[Content]:
    return [Content(*donor.content) for donor in donors]
