"""A logistic regression, learnt online, of the chance that a path is used again soon."""

from __future__ import annotations

from math import exp, log2, sqrt

from cachectl.policies.reuse.history import BANDS, CLASSES, HALF_LIVES, Example, History

_RATE = 0.25
# AdaGrad's sums of earlier gradients fade, so that the model follows traffic that changes.
_FADING = 0.9999
# Decayed counts (log2) below this count as none.
_FLOOR = -5.0
_AGES = 16
_ROWS = len(BANDS) * len(CLASSES)
_SHORT, _MIDDLE, _LONG = (1 / half_life for half_life in HALF_LIVES)


class ReuseModel:
    """P(used within the next W requests) = sigmoid(w·f + t[cell]); its logit ranks paths.

    The features f of a path whose last use is a requests ago:

    - a constant
    - log2(1 + a)
    - log2 of its uses, decayed with half-lives of 64, 1,024 and 16,384 requests
    - whether it stands behind at least one document, two, or four
    - log2 of the decayed uses of its document on all paths
    - whether it was used only once
    - whether it was the end of its latest request

    The weights balance recency (short half-lives) against frequency (long ones), and learn what depth means to this
    traffic. ``t`` is a correction by cell: a band of depth, a class of uses and a class of age. Gradient steps are
    AdaGrad's (Duchi et al. 2011), with fading memory.
    """

    def __init__(self) -> None:
        # Learning starts from this: young, frequent and near the root means likely.
        self._weights = [-2.0, -1.0, 0.4, 0.4, 0.4, -0.5, 0.0, 0.0, 0.0, -0.5, 0.0]
        self._squares = [1.0] * len(self._weights)
        self._corrections = [0.0] * (_ROWS * _AGES)
        self._correction_squares = [1.0] * (_ROWS * _AGES)

    def logit(self, history: History, tick: int) -> float:
        """The logit of a path's chance of reuse as of request ``tick``."""
        # What `learn` computes from `example`, written out: this runs for every candidate for eviction.
        constant, by_age, by_short, by_middle, by_long, deep, deeper, deepest, by_document, once, ending = self._weights
        age = tick - history.last
        short, middle, long = history.decayed
        short -= age * _SHORT
        middle -= age * _MIDDLE
        long -= age * _LONG
        document = history.document
        popularity = document.count - (tick - document.last) * _LONG
        classes = (age + 1).bit_length()
        logit = (
            constant
            + by_age * (log2(1.0 + age) * 0.25 - 1.5)
            + 0.5
            * (
                by_short * (short if short > _FLOOR else _FLOOR)
                + by_middle * (middle if middle > _FLOOR else _FLOOR)
                + by_long * (long if long > _FLOOR else _FLOOR)
            )
            + 0.25 * by_document * (popularity if popularity > _FLOOR else _FLOOR)
            + self._corrections[history.row * _AGES + (classes if classes < _AGES else _AGES) - 1]
        )
        if history.band:
            logit += deep
            if history.band > 1:
                logit += deeper
                if history.band > 2:
                    logit += deepest
        if history.last_in_request:
            logit += ending
        return logit + once if history.uses <= 1 else logit

    def example(self, history: History, tick: int) -> Example:
        """An example of the path as it is now."""
        age = tick - history.last
        short, middle, long = history.decayed
        document = history.document
        features = (
            1.0,
            log2(1.0 + age) * 0.25 - 1.5,
            0.5 * max(_FLOOR, short - age * _SHORT),
            0.5 * max(_FLOOR, middle - age * _MIDDLE),
            0.5 * max(_FLOOR, long - age * _LONG),
            1.0 if history.band > 0 else 0.0,
            1.0 if history.band > 1 else 0.0,
            1.0 if history.band > 2 else 0.0,
            0.25 * max(_FLOOR, document.count - (tick - document.last) * _LONG),
            1.0 if history.uses <= 1 else 0.0,
            1.0 if history.last_in_request else 0.0,
        )
        return Example(tick, history, features, history.row * _AGES + min(_AGES, (age + 1).bit_length()) - 1)

    def learn(self, example: Example, used: bool) -> None:
        """Take one gradient step towards an example's outcome."""
        weights, squares, features, cell = self._weights, self._squares, example.features, example.cell
        logit = self._corrections[cell]
        for weight, feature in zip(weights, features, strict=True):
            logit += weight * feature
        error = used - 1.0 / (1.0 + exp(-max(-30.0, min(30.0, logit))))
        for index, feature in enumerate(features):
            if feature:
                gradient = error * feature
                squares[index] = square = squares[index] * _FADING + gradient * gradient
                weights[index] += _RATE * gradient / sqrt(square)
        self._correction_squares[cell] = square = self._correction_squares[cell] * _FADING + error * error
        self._corrections[cell] += _RATE * error / sqrt(square)
