"""The training loop: the mask of trees stands in the place of the causal one (DepCache, section on fine-tuning)."""

import math
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import TypeAlias

import torch

from protocol.errors import ConfigError
from ragtree_lab.fine_tuning.exercise import Answered, Exercise, Source, batches
from ragtree_lab.fine_tuning.inputs import Inputs, in_full, in_trees
from ragtree_lab.fine_tuning.record import (
    HeldOutScores,
    LearnedAnswers,
    Recipe,
    SourceRecord,
    TuningRecord,
    TuningScores,
)
from ragtree_lab.fine_tuning.tuned_model import TunedModel

Score: TypeAlias = Callable[[Sequence[int], Sequence[str]], float]
"""Compares the token ids of an answer with the right answers, from 0 to 1."""

_MOST_NORM = 1.0
"""Of a step's gradient. Longer ones are cut, so that a batch of odd questions does no harm."""

_ANSWER_TOKENS = 32
"""The most of an answer that the model writes, for its score or to learn it."""


class _Tally:
    """The losses of all tokens of answers, which answers are exact, and the scores of those that the model writes."""

    def __init__(self) -> None:
        self._losses: list[float] = []
        self._exact: list[bool] = []
        self._f1: list[float] = []

    def add(self, losses: Iterable[float], exact: Iterable[bool], f1: Iterable[float]) -> None:
        """Count one exercise: the losses of its answers' tokens, which answers are exact, and their scores."""
        self._losses += losses
        self._exact += exact
        self._f1 += f1

    @property
    def scores(self) -> TuningScores:
        """The mean loss, the share of exact answers, and the mean score."""
        return TuningScores(fmean(self._losses), fmean(self._exact), fmean(self._f1))


class DependencyTraining:
    """Trains all weights of a model by a recipe, and writes it into a new ``folder``.

    Checkpoints get folders beside it, ``FOLDER-step-N``. ``f1`` scores answers, and ``progress`` is called with (step,
    done, total). Raises ConfigError if one of the folders exists or cannot be made.
    """

    def __init__(
        self, model: TunedModel, recipe: Recipe, folder: Path, f1: Score, progress: Callable[[str, int, int], None]
    ) -> None:
        _refuse(folder)
        self._model = model
        self._recipe = recipe
        self._folder = folder
        self._f1 = f1
        self._optimizer = torch.optim.AdamW(model.parameters, recipe.learning_rate)
        self._progress = progress
        self._losses: list[float] = []

    @classmethod
    def of(
        cls, model: Path, recipe: Recipe, folder: Path, f1: Score, progress: Callable[[str, int, int], None]
    ) -> "DependencyTraining":
        """The training of the model of a folder on this machine, on its GPU if it has one.

        Raises ConfigError, also if the model cannot be trained under masks of trees.
        """
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        return cls(TunedModel(model, device), recipe, folder, f1, progress)

    def run(self, sources: Mapping[str, Source]) -> TuningRecord:
        """Train on the exercises of all sources, mixed, and write the model.

        Raises ConfigError if there are no questions to train on, or if a source holds none out, and if the learning
        rate is so high that the loss is no number any more. Raises OSError if the model cannot be written.
        """
        training = [exercise for source in sources.values() for exercise in source.training]
        if not training:
            raise ConfigError("there is no question to train on", "questions")
        if not all(source.held_out for source in sources.values()):
            raise ConfigError("there is no question to hold out", "held_out")
        torch.manual_seed(self._recipe.seed)
        began = time.monotonic()
        before = self._scores(sources, "asking before")

        def record(to: Path, after: Mapping[str, HeldOutScores]) -> TuningRecord:
            return TuningRecord(
                model=str(self._model.folder),
                trained="full",
                recipe=self._recipe,
                questions=_questions(training),
                held_out=sum(_questions(source.held_out) for source in sources.values()),
                steps=len(self._losses),
                losses=list(self._losses),
                seconds=round(time.monotonic() - began, 3),
                sources={
                    name: SourceRecord(
                        _questions(source.training),
                        _questions(source.held_out),
                        source.left_out,
                        before[name],
                        after.get(name),
                    )
                    for name, source in sources.items()
                },
                folder=str(to),
            )

        if self._recipe.answers is LearnedAnswers.OWN:
            training = self._with_own_answers(training)
        self._train(training, lambda to: self._model.save(to, record(to, {})))
        self._model.round()
        done = record(self._folder, self._scores(sources, "asking after"))
        self._model.save(self._folder, done)
        return done

    def _with_own_answers(self, learned: Sequence[Exercise]) -> list[Exercise]:
        """The exercises with the answers that the model writes now, with every path in full."""
        found: list[Exercise] = []
        for done, exercise in enumerate(learned):
            self._progress("answering", done, len(learned))
            front = in_full(exercise._replace(asked=()))
            with torch.inference_mode():
                written = list(self._model.answers(front, exercise.asked, _ANSWER_TOKENS))
            asked = [one._replace(answer=_ended(own, one)) for own, one in zip(written, exercise.asked, strict=True)]
            found.append(exercise._replace(asked=tuple(asked)))
        self._progress("answering", len(learned), len(learned))
        return found

    def _train(self, training: Sequence[Exercise], save: Callable[[Path], None]) -> None:
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
                    save(self._folder.with_name(f"{self._folder.name}-step-{len(self._losses)}"))
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

    def _scores(self, sources: Mapping[str, Source], step: str) -> dict[str, HeldOutScores]:
        self._model.training(False)
        total, done = sum(len(source.held_out) for source in sources.values()), 0
        scores: dict[str, HeldOutScores] = {}
        for name, source in sources.items():
            trees, full = _Tally(), _Tally()
            for exercise in source.held_out:
                self._progress(step, done, total)
                self._ask(exercise, in_trees, trees)
                self._ask(exercise, in_full, full)
                done += 1
            scores[name] = HeldOutScores(trees.scores, full.scores)
        self._progress(step, total, total)
        return scores

    def _ask(self, exercise: Exercise, read: Callable[[Exercise], Inputs], tally: _Tally) -> None:
        """Ask the questions of an exercise that the model reads so."""
        whole, front = read(exercise), read(exercise._replace(asked=()))
        with torch.inference_mode():
            predicted = self._model.predicted(whole)
            hits = predicted.hits.cpu()
            exact = [bool(hits[whole.answers == number].all()) for number in range(len(exercise.asked))]
            # Exact answers are what the model writes, so only the others cost a token at a time.
            missed = [one for one, hit in zip(exercise.asked, exact, strict=True) if not hit]
            written = self._model.answers(front, missed, _ANSWER_TOKENS) if missed else iter(())
            answers = [
                one.answer[:-1] if hit else next(written) for one, hit in zip(exercise.asked, exact, strict=True)
            ]
        f1 = [self._f1(answer, one.right) for answer, one in zip(answers, exercise.asked, strict=True)]
        tally.add(predicted.losses.tolist(), exact, f1)


def _ended(written: tuple[int, ...], asked: Answered) -> tuple[int, ...]:
    """What was written, and the token that ended it, unless it was cut."""
    return written if len(written) == _ANSWER_TOKENS else (*written, asked.answer[-1])


def _refuse(folder: Path) -> None:
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{folder} cannot be made: {error}", "out") from error
    taken = [folder] if folder.exists() else list(folder.parent.glob(f"{folder.name}-step-*"))
    if taken:
        raise ConfigError(f"{taken[0]} exists already", "out")


def _questions(exercises: Iterable[Exercise]) -> int:
    return sum(len(exercise.asked) for exercise in exercises)
