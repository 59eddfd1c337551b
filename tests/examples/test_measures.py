"""Areas under curves equal scikit-learn's, with equal scores, too, and are unknown where a kind of row is missing."""

from __future__ import annotations

import math

import pytest
import torch

from graphweave.examples.measures import average_precision, roc_auc


@pytest.mark.parametrize("values", [2, 7, 10**6])
def test_areas_are_those_of_scikit_learn(values: int) -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    generator = torch.Generator().manual_seed(values)
    for size in (2, 3, 50, 400):
        scores = torch.randint(values, (size,), generator=generator) / values - 0.5
        truth = torch.rand(size, generator=generator) < 0.3
        truth[0], truth[1] = True, False
        area, precision = roc_auc(truth, scores), average_precision(truth, scores)
        assert area == pytest.approx(metrics.roc_auc_score(truth, scores), abs=1e-12)
        assert precision == pytest.approx(metrics.average_precision_score(truth, scores), abs=1e-12)


def test_areas_are_unknown_without_rows_of_both_kinds() -> None:
    scores = torch.tensor([0.5, -1.0])
    for truth in (torch.tensor([True, True]), torch.tensor([False, False])):
        assert math.isnan(roc_auc(truth, scores))
    none = torch.zeros(0)
    assert math.isnan(roc_auc(none.bool(), none)) and math.isnan(average_precision(none.bool(), none))
    assert math.isnan(average_precision(torch.tensor([False, False]), scores))
    assert average_precision(torch.tensor([True, True]), scores) == 1.0


def test_areas_are_unknown_where_a_score_is_not_a_number() -> None:
    truth, scores = torch.tensor([True, False]), torch.tensor([math.nan, 1.0])
    assert math.isnan(roc_auc(truth, scores)) and math.isnan(average_precision(truth, scores))
