"""Measures of predictions: accuracy, and areas under the ROC and the precision-recall curves."""

from __future__ import annotations

import math

import torch
from torch import Tensor

ACCURACY, MRR, AUC, PRECISION, ERROR = "accuracy", "MRR", "ROC AUC", "average precision", "mean absolute error"
"""Names of measures."""


def accuracy(predicted: Tensor, y: Tensor, mask: Tensor) -> float:
    """The share of correct predictions where `mask` is true; NaN if the mask is empty."""
    return float((predicted == y)[mask].float().mean())


def class_scores(y: Tensor, classes: int) -> Tensor:
    """Scores [classes] that are 1 for the commonest class in `y`, and 0 for the others."""
    scores = torch.zeros(classes)
    scores[y.bincount(minlength=classes).argmax()] = 1
    return scores


def commonest(y: Tensor, train_mask: Tensor, test_mask: Tensor) -> dict[str, float]:
    """The accuracy of the commonest class of the training rows on the test rows, by its name."""
    common = y[train_mask].bincount().argmax()
    return {f"test {ACCURACY}": accuracy(common.expand_as(y), y, test_mask)}


def roc_auc(truth: Tensor, scores: Tensor) -> float:
    """The share of pairs of a true and a false row in which the true one has the higher score; equal scores count half.

    `truth` [n] bool, `scores` [n]. NaN if all rows are true, or all false, or if a score is NaN.
    """
    if bool(scores.isnan().any()):
        return math.nan
    true, false = _by_score(truth, scores)
    below = false.cumsum(0) - false / 2
    return float((true * below).sum() / (true.sum() * false.sum()))


def average_precision(truth: Tensor, scores: Tensor) -> float:
    """The sum over thresholds of the precision there, times the recall that it adds to the next higher one.

    `truth` [n] bool, `scores` [n]. NaN if no row is true, or if a score is NaN.
    """
    if bool(scores.isnan().any()):
        return math.nan
    true, false = (counts.flip(0) for counts in _by_score(truth, scores))
    precision = true.cumsum(0) / (true + false).cumsum(0)
    return float((precision * true).sum() / true.sum())


def _by_score(truth: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
    """The numbers of true and of false rows with each score, the lowest score first, as float64."""
    found, place = scores.unique(return_inverse=True)
    true, false = (place[rows].bincount(minlength=found.numel()).double() for rows in (truth, ~truth))
    return true, false
