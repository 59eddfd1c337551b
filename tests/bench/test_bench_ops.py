"""The benchmark of operators on edges: systems equal definitions, and graphs are what they are said to be."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from bench.ops import checked, expected, here, own_over_built_in, ratios
from bench.ops_cases import CASES, data_of, definition, graphweave_call, mkl_call, pyg_call
from bench.ops_graphs import absent, edges_of
from graphweave.core.settings import override


@pytest.mark.parametrize("case", CASES)
@pytest.mark.filterwarnings("ignore:Sparse:UserWarning")
def test_systems_equal_the_definition(case: str, tmp_path: Path) -> None:
    """The systems run as PyTorch's own calls: the test compares how the cases are written."""
    data = data_of(*edges_of("tiny", tmp_path), 8)
    want = definition(case, data)
    calls = [graphweave_call(case, data), pyg_call(case, data), mkl_call(case, data)]
    with override(eager_kernels=False):
        for call in calls:
            if call is not None:
                assert checked(here(call), want, tmp_path / "out.npz")["status"] == "ok"
        assert checked(here(lambda: want.float() * 1.01), want, tmp_path / "out.npz")["status"].startswith("wrong by")


@pytest.mark.parametrize("case", CASES)
def test_a_sample_of_rows_is_part_of_the_definition(case: str, tmp_path: Path) -> None:
    data = data_of(*edges_of("tiny", tmp_path), 8)
    every, part = definition(case, data), expected(case, data, 7)
    torch.testing.assert_close(part, every[::7], rtol=1e-12, atol=1e-12)
    assert checked(here(lambda: every.float()), part, tmp_path / "out.npz", 7)["status"] == "ok"


def test_graphs_have_the_structure_of_the_papers(tmp_path: Path) -> None:
    index, nodes = edges_of("rand-10k", tmp_path)
    counts = torch.bincount(torch.bincount(index[1]))
    assert nodes == 10_000
    assert (counts[2000], counts[100]) == (2000, 8000)
    assert edges_of("uniform-99.95", tmp_path)[0].shape == (2, 50_000)
    assert "is absent" in str(absent("flickr_small", tmp_path))


def test_ratios_are_to_graphweave() -> None:
    answer = {
        "graphweave": {"median": 2.0},
        "mkl": {"median": 3.0},
        "pyg": {"status": "its messages exceed the memory"},
    }
    assert ratios(answer) == {"graphweave": 1.0, "mkl": 1.5}
    results = {"weighted 32": {"graphweave": {"median": 2.0}}, "weighted-own 32": {"graphweave": {"median": 2.2}}}
    assert own_over_built_in(results) == pytest.approx(1.1)
