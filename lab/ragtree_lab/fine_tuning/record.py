"""What a fine-tuning did, as it is written beside the model's weights."""

from enum import StrEnum

import msgspec

from protocol.dependency import TreePositions

RECORD = "fine_tuning.json"
"""The record's file in the model's folder."""


class LearnedAnswers(StrEnum):
    """Which answers to the questions a model learns.

    ``right``: the right ones (DepCache). ``own``: what the model itself writes before the training, with every path in
    full. So it learns to read trees, and neither words answers otherwise nor knows more (sequence-level distillation;
    Kim and Rush 2016).
    """

    RIGHT = "right"
    OWN = "own"


class Recipe(msgspec.Struct, frozen=True):
    """How a model is trained; the defaults are DepCache's (section on fine-tuning).

    ``learning_rate`` is that of AdamW, and constant. A step has the gradient of ``batch`` questions, or of a few more,
    because those about the same facts stay together. ``positions`` are those of the tokens in trees. After every
    ``checkpoint_steps`` steps, if they are given, the model is written.
    """

    learning_rate: float = 2e-5
    batch: int = 64
    epochs: int = 1
    positions: TreePositions = TreePositions.DEPTH
    checkpoint_steps: int | None = None
    seed: int = 0
    answers: LearnedAnswers = LearnedAnswers.RIGHT


class TuningScores(msgspec.Struct, frozen=True):
    """How well questions are answered.

    ``loss`` is the mean of their answers' tokens, in nats. ``exact`` is the share of answers of which each token is the
    most likely one behind those before it, so that greedy decoding writes them. ``f1`` is the mean score of what greedy
    decoding writes, from 0 to 1: that of its words, against all right answers.
    """

    loss: float
    exact: float
    f1: float


class HeldOutScores(msgspec.Struct, frozen=True):
    """Scores on questions that are not trained on, with their facts in trees, and with every path in full."""

    dependency: TuningScores
    self_attention: TuningScores


class SourceRecord(msgspec.Struct, frozen=True):
    """One source: how many ``questions`` are trained on and ``held_out``, and scores on the latter.

    ``left_out`` counts its questions that were not taken, because their facts state no right answer. A checkpoint has
    no scores ``after``.
    """

    questions: int
    held_out: int
    left_out: int
    before: HeldOutScores
    after: HeldOutScores | None


class TuningRecord(msgspec.Struct, frozen=True):
    """A fine-tuning of ``model`` with ``questions``, by ``sources``, and the loss of each step.

    ``trained`` is what was trained: all weights (``full``). Scores after it are of the weights as they are written, in
    the type of those that were read. ``folder`` has the model.
    """

    model: str
    trained: str
    recipe: Recipe
    questions: int
    held_out: int
    steps: int
    losses: list[float]
    seconds: float
    sources: dict[str, SourceRecord]
    folder: str
