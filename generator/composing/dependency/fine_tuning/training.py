"""The training loop: the mask of trees stands in the place of the causal one (DepCache, section on fine-tuning)."""

import math
import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean

import torch

from generator.composing.dependency.fine_tuning.exercise import Exercise, batches
from generator.composing.dependency.fine_tuning.inputs import Inputs, in_full, in_trees
from generator.composing.dependency.fine_tuning.record import HeldOutScores, Recipe, TuningRecord, TuningScores
from generator.composing.dependency.fine_tuning.tuned_model import Predicted, TunedModel
from protocol.errors import ConfigError

_MOST_NORM = 1.0
"""Of a step's gradient. Longer ones are cut, so that a batch of odd questions does no harm."""


class _Tally:
    """The losses of all tokens of answers, and which answers are exact."""

    def __init__(self) -> None:
        self._losses: list[float] = []
        self._exact: list[bool] = []

    def add(self, inputs: Inputs, predicted: Predicted) -> None:
        """Count what was predicted of one exercise."""
        self._losses += predicted.losses.tolist()
        hits = predicted.hits.cpu()
        self._exact += [bool(hits[inputs.answers == answer].all()) for answer in set(inputs.answers.tolist())]

    @property
    def scores(self) -> TuningScores:
        """The mean loss, and the share of exact answers."""
        return TuningScores(fmean(self._losses), fmean(self._exact))


class DependencyTraining:
    """Trains all weights of a model by a recipe. ``progress`` is called with (step, done, total)."""

    def __init__(self, model: TunedModel, recipe: Recipe, progress: Callable[[str, int, int], None]) -> None:
        self._model = model
        self._recipe = recipe
        self._optimizer = torch.optim.AdamW(model.parameters, recipe.learning_rate)
        self._progress = progress
        self._losses: list[float] = []

    def run(self, training: Sequence[Exercise], held_out: Sequence[Exercise], folder: Path) -> TuningRecord:
        """Train, and write the model into a new ``folder``; checkpoints get folders beside it, ``FOLDER-step-N``.

        Raises ConfigError if one of them exists or cannot be made, if there are no questions, or if the learning rate
        is so high that the loss is no number any more. Raises OSError if the model cannot be written.
        """
        self._refuse(training, held_out, folder)
        torch.manual_seed(self._recipe.seed)
        began = time.monotonic()
        before = self._scores(held_out, "asking before")

        def record(to: Path, after: HeldOutScores | None) -> TuningRecord:
            return TuningRecord(
                model=str(self._model.folder),
                trained="full",
                recipe=self._recipe,
                questions=_questions(training),
                held_out=_questions(held_out),
                steps=len(self._losses),
                losses=list(self._losses),
                seconds=round(time.monotonic() - began, 3),
                before=before,
                after=after,
                folder=str(to),
            )

        self._train(training, lambda to: self._model.save(to, record(to, None)), folder)
        self._model.round()
        done = record(folder, self._scores(held_out, "asking after"))
        self._model.save(folder, done)
        return done

    def _train(self, training: Sequence[Exercise], save: Callable[[Path], None], folder: Path) -> None:
        order = random.Random(self._recipe.seed)  # noqa: S311 - a repeatable order
        done, total = 0, self._recipe.epochs * _questions(training)
        every = self._recipe.checkpoint_steps
        self._model.training(True)
        for _ in range(self._recipe.epochs):
            for batch in batches(order.sample(training, len(training)), self._recipe.batch):
                self._progress("training", done, total)
                self._losses.append(self._step(batch))
                done += _questions(batch)
                # The last step's model is the result.
                if every and len(self._losses) % every == 0 and done < total:
                    save(_checkpoint(folder, len(self._losses)))
        self._progress("training", total, total)

    def _step(self, batch: Sequence[Exercise]) -> float:
        """One step of the optimizer. Return the mean loss of the batch's tokens of answers before it, in nats."""
        tokens = sum(len(one.answer) for exercise in batch for one in exercise.asked)
        self._optimizer.zero_grad()
        loss = 0.0
        # Gradients add up, so a batch needs no more memory than one exercise.
        for exercise in batch:
            part = self._model.predicted(in_trees(exercise)).losses.sum() / tokens
            part.backward()  # type: ignore[no-untyped-call]  # torch annotates it in parts
            loss += float(part.detach())
        if not math.isfinite(loss):
            raise ConfigError(
                f"the loss is no number any more after {len(self._losses)} steps: choose a lower learning rate",
                "learning_rate",
            )
        torch.nn.utils.clip_grad_norm_(self._model.parameters, _MOST_NORM)
        self._optimizer.step()
        return loss

    def _scores(self, held_out: Sequence[Exercise], step: str) -> HeldOutScores:
        self._model.training(False)
        trees, full = _Tally(), _Tally()
        for done, exercise in enumerate(held_out):
            self._progress(step, done, len(held_out))
            for tally, inputs in ((trees, in_trees(exercise)), (full, in_full(exercise))):
                with torch.inference_mode():
                    tally.add(inputs, self._model.predicted(inputs))
        self._progress(step, len(held_out), len(held_out))
        return HeldOutScores(trees.scores, full.scores)

    def _refuse(self, training: Sequence[Exercise], held_out: Sequence[Exercise], folder: Path) -> None:
        for questions, name in ((training, "train on"), (held_out, "hold out")):
            if not _questions(questions):
                raise ConfigError(f"there is no question to {name}", "questions")
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"{folder} cannot be made: {error}", "out") from error
        taken = [folder] if folder.exists() else list(folder.parent.glob(f"{folder.name}-step-*"))
        if taken:
            raise ConfigError(f"{taken[0]} exists already", "out")


def fine_tuned(
    model: Path,
    recipe: Recipe,
    training: Sequence[Exercise],
    held_out: Sequence[Exercise],
    folder: Path,
    progress: Callable[[str, int, int], None],
) -> TuningRecord:
    """Train the model of a folder on this machine, on its GPU if it has one. Raises as ``DependencyTraining.run``."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return DependencyTraining(TunedModel(model, device), recipe, progress).run(training, held_out, folder)


def _checkpoint(folder: Path, steps: int) -> Path:
    return folder.with_name(f"{folder.name}-step-{steps}")


def _questions(exercises: Sequence[Exercise]) -> int:
    return sum(len(exercise.asked) for exercise in exercises)
