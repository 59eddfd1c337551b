"""The benchmark of operators on edges: systems equal definitions, and graphs are what they are said to be."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from bench.named_graphs import absent, edges_of
from bench.ops import build, case_of, error, own_over_built_in
from bench.ops_cases import CASES, data_of, definition, expected
from bench.steps import Result, result_of
from graphweave.core.settings import override

TINY = "rmat:300:2000"


@pytest.mark.parametrize("operator", CASES)
@pytest.mark.filterwarnings("ignore:Sparse:UserWarning")
def test_systems_equal_the_definition(operator: str, tmp_path: Path) -> None:
    """The systems run as PyTorch's own calls: the test compares how the cases are written."""
    case = case_of(operator, TINY, 64, tmp_path)
    peers = build(operator, TINY, 64, tmp_path)
    want = result_of(peers[case.check.reference]()())
    with override(eager_kernels=False):
        for peer in case.peers:
            if peer not in ("dgl", "handwritten"):  # which are not there, and need a compiler
                assert case.check.verdict(result_of(peers[peer]()()), want)["status"] == "ok", peer
        wrong = Result((want.outputs[0].float() * 1.01,), {})
        assert case.check.verdict(wrong, want)["status"].startswith("wrong: result is off")


@pytest.mark.parametrize("operator", CASES)
def test_a_sample_of_rows_is_part_of_the_definition(operator: str, tmp_path: Path) -> None:
    data = data_of(*edges_of(TINY, tmp_path), 8)
    every, part = definition(operator, data), expected(operator, data, 7)
    torch.testing.assert_close(part, every[::7], rtol=1e-12, atol=1e-12)
    assert error(Result((every.float(),), {}), Result((part,), {}))[0] < 1e-6


def test_graphs_have_the_structure_of_the_papers(tmp_path: Path) -> None:
    index, nodes = edges_of("rand-10k", tmp_path)
    counts = torch.bincount(torch.bincount(index[1]))
    assert nodes == 10_000
    assert (counts[2000], counts[100]) == (2000, 8000)
    assert edges_of("uniform-99.95", tmp_path)[0].shape == (2, 50_000)
    assert "is absent" in str(absent("flickr_small", tmp_path))


def test_a_function_of_ones_own_is_compared_with_the_built_in_of_the_same_length() -> None:
    results = {"g weighted 32": {"graphweave": {"median": 2.0}}, "g weighted-own 32": {"graphweave": {"median": 2.2}}}
    assert own_over_built_in(results) == pytest.approx(1.1)
