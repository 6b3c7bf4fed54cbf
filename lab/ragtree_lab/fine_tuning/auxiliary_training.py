"""Fine-tunes an auxiliary model to attend to what the engine's model attends to (CacheClip, section 4.1).

Both models read the same chunks and the same question. The loss is the Kullback-Leibler divergence of the auxiliary
model's attention from the engine's model's: that of the question to the chunks in the last layer, as a mean over heads
and the question's tokens. The models may have different tokenizers. Attention passes between their tokens by
characters.

What counts is which tokens are selected, so the result also has the overlap of the best tokens by either model, on
questions that were not trained on, before and after.

Limits: the auxiliary model reads each prompt whole here. In a stack, it composes its own KV of each chunk.
"""

import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import msgspec
import torch

from protocol.errors import ConfigError
from ragtree_lab.selectors.auxiliary.reading import PREFIX, model_with_attention
from ragtree_lab.selectors.auxiliary.token_spans import Span, TokenSpans, highest_by_characters

_TOP = 0.2
"""The share of tokens that are compared, which is the share that composing computes again by default."""


class Reading(NamedTuple):
    """Chunks of text, and questions about them."""

    chunks: Sequence[str]
    questions: Sequence[str]


class AuxiliaryScores(msgspec.Struct, frozen=True):
    """How near the auxiliary model is to the engine's, over ``questions`` questions.

    ``kl`` is the divergence that is trained on, in nats. ``jaccard`` is the overlap of the best 20 % of the tokens.
    """

    questions: int
    kl: float
    jaccard: float


class AuxiliaryResult(msgspec.Struct, frozen=True):
    """Scores on held-out questions ``before`` and ``after`` training of so many ``steps``.

    ``folder`` has the trained model.
    """

    before: AuxiliaryScores
    after: AuxiliaryScores
    steps: int
    folder: str


class _Attention(NamedTuple):
    """A question's attention to the tokens of chunks, which sums to 1, and these tokens' characters in all chunks."""

    weights: torch.Tensor
    spans: list[Span]


class _Reader:
    """A model that reads prompts whole. Raises ConfigError if the folder has no model."""

    def __init__(self, folder: Path, dtype: torch.dtype | str) -> None:
        self.folder = folder
        self._tokens = TokenSpans(folder)
        self.model = model_with_attention(folder, dtype)

    def attention(self, chunks: Sequence[str], question: str) -> _Attention:
        """The question's attention to the chunks in the last layer."""
        prefix, asked = (self._tokens.of_text(text).token_ids for text in (PREFIX, question))
        ids, spans, characters = list(prefix), [], 0
        for chunk in chunks:
            spelled = self._tokens.of_text(f"{chunk}\n\n")
            ids += spelled.token_ids
            spans += [Span(span.start + characters, span.end + characters) for span in spelled.spans]
            characters += len(spelled.text)
        output = self.model(torch.tensor([ids + asked]), use_cache=False, output_attentions=True)
        paid = output.attentions[-1][0, :, len(ids) :, len(prefix) : len(ids)].float().mean((0, 1))
        return _Attention(paid / paid.sum(), spans)


class AuxiliaryTraining:
    """Trains the auxiliary model in ``auxiliary`` after the engine's model in ``primary``.

    ``progress`` is called with (step, done, total).
    """

    def __init__(
        self, primary: Path, auxiliary: Path, learning_rate: float, progress: Callable[[str, int, int], None]
    ) -> None:
        self._teacher = _Reader(primary, "auto")
        # Small steps would be lost in half precision.
        self._student = _Reader(auxiliary, torch.float32)
        self._optimizer = torch.optim.AdamW(self._student.model.parameters(), learning_rate)
        self._progress = progress

    def run(self, training: Sequence[Reading], held_out: Sequence[Reading], folder: Path) -> AuxiliaryResult:
        """Train on one prompt a step, and write the model into a new ``folder``. Raises ConfigError if it exists."""
        if folder.exists():
            raise ConfigError(f"{folder} exists already", "out")
        before = self._scores(held_out, "asking before")
        for done, reading in enumerate(training):
            self._progress("training", done, len(training))
            self._train(reading)
        self._progress("training", len(training), len(training))
        after = self._scores(held_out, "asking after")
        self._save(folder)
        return AuxiliaryResult(before, after, len(training), str(folder))

    def _train(self, reading: Reading) -> None:
        losses = []
        for question in reading.questions:
            target = self._target(reading, question)
            own = self._student.attention(reading.chunks, question)
            losses.append(_divergence(_onto(target, own.spans), own.weights))
        self._optimizer.zero_grad()
        torch.stack(losses).mean().backward()  # type: ignore[no-untyped-call]  # torch annotates it in parts
        self._optimizer.step()

    def _scores(self, readings: Sequence[Reading], step: str) -> AuxiliaryScores:
        divergences, overlaps = [], []
        for done, reading in enumerate(readings):
            self._progress(step, done, len(readings))
            for question in reading.questions:
                target = self._target(reading, question)
                with torch.inference_mode():
                    own = self._student.attention(reading.chunks, question)
                divergences.append(float(_divergence(_onto(target, own.spans), own.weights)))
                overlaps.append(_jaccard(target.weights, _onto(own, target.spans)))
        self._progress(step, len(readings), len(readings))
        return AuxiliaryScores(len(overlaps), fmean(divergences), fmean(overlaps))

    def _target(self, reading: Reading, question: str) -> _Attention:
        with torch.inference_mode():
            return self._teacher.attention(reading.chunks, question)

    def _save(self, folder: Path) -> None:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
            made = Path(scratch) / folder.name
            self._student.model.to(torch.bfloat16).save_pretrained(made)
            for file in self._student.folder.glob("tokenizer*.json"):
                shutil.copy(file, made)
            made.rename(folder)


def _onto(attention: _Attention, spans: Sequence[Span]) -> torch.Tensor:
    """Attention by another tokenizer's tokens; it sums to 1."""
    paid = highest_by_characters(attention.weights.detach(), attention.spans, spans)
    return paid / paid.sum()


def _divergence(target: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
    least = torch.finfo(torch.float32).tiny
    return (target * (target.clamp(min=least).log() - own.clamp(min=least).log())).sum()


def _jaccard(one: torch.Tensor, other: torch.Tensor) -> float:
    count = max(1, int(_TOP * len(one)))
    first, second = (set(scores.topk(count).indices.tolist()) for scores in (one, other))
    return len(first & second) / len(first | second)
