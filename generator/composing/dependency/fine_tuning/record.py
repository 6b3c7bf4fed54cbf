"""What a fine-tuning did, as it is written beside the model's weights."""

import msgspec

from protocol.dependency import TreePositions

RECORD = "fine_tuning.json"
"""The record's file in the model's folder."""


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


class TuningScores(msgspec.Struct, frozen=True):
    """How well answers are predicted: the mean ``loss`` of their tokens, in nats, and the share that is ``exact``.

    An answer is exact if each of its tokens is the most likely one behind those before it. So it is what greedy
    decoding writes.
    """

    loss: float
    exact: float


class HeldOutScores(msgspec.Struct, frozen=True):
    """Scores on questions that are not trained on, with their facts in trees, and with every path in full."""

    dependency: TuningScores
    self_attention: TuningScores


class TuningRecord(msgspec.Struct, frozen=True):
    """A fine-tuning of ``model`` with ``questions``: held-out scores ``before`` and ``after``, and each step's loss.

    ``trained`` is what was trained: all weights (``full``). A checkpoint has no scores after. ``after`` is of the
    weights as they are written, in the type of those that were read. ``folder`` has the model.
    """

    model: str
    trained: str
    recipe: Recipe
    questions: int
    held_out: int
    steps: int
    losses: list[float]
    seconds: float
    before: HeldOutScores
    after: HeldOutScores | None
    folder: str
