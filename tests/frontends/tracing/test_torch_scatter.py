"""torch_scatter's functions in compiled code. A stand-in with operators that no trace can run takes its place."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import graphweave
from tests.support import features

F64 = torch.float64
DOORS: dict[str, Callable[[Any], Any]] = {
    "graphweave.compile": graphweave.compile,
    "torch.compile": lambda f: torch.compile(f, backend="graphweave", fullgraph=True),
}


def _extreme(src: Tensor, index: Tensor, rows: int, sign: int) -> tuple[Tensor, Tensor]:
    """One number after the other, as torch_scatter's kernel on a CPU; the first of equal numbers wins."""
    place = torch.full((rows, src.shape[1]), src.shape[0])
    for i, row in enumerate(index.tolist()):
        for f in range(src.shape[1]):
            at = int(place[row, f])
            if at == src.shape[0] or sign * src[i, f] > sign * src[at, f]:
                place[row, f] = i
    return torch.cat([src, src.new_zeros(1, src.shape[1])]).gather(0, place), place


@pytest.fixture
def torch_scatter(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    module: Any = types.ModuleType("torch_scatter")

    def scatter_max(src: Tensor, index: Tensor, dim: int = -1, out: Any = None, dim_size: Any = None) -> Any:
        return _extreme(src, index, dim_size if dim_size is not None else int(index.max()) + 1, 1)

    def scatter_min(src: Tensor, index: Tensor, dim: int = -1, out: Any = None, dim_size: Any = None) -> Any:
        return _extreme(src, index, dim_size if dim_size is not None else int(index.max()) + 1, -1)

    def segment_csr(src: Tensor, indptr: Tensor, out: Any = None, reduce: str = "sum") -> Tensor:
        index = torch.repeat_interleave(indptr.diff())
        if reduce in ("max", "min"):
            return _extreme(src, index, len(indptr) - 1, 1 if reduce == "max" else -1)[0]
        total = src.new_zeros(len(indptr) - 1, src.shape[1]).index_add(0, index, src)
        return total if reduce == "sum" else total / indptr.diff().clamp(min=1)[:, None]

    module.scatter_max, module.scatter_min, module.segment_csr = scatter_max, scatter_min, segment_csr
    monkeypatch.setitem(sys.modules, "torch_scatter", module)
    yield module


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("name", ["scatter_max", "scatter_min", "without a size", "max", "min", "mean", "sum"])
def test_reductions_are_part_of_one_graph(name: str, door: str, torch_scatter: Any, fresh_compiler: None) -> None:
    largest, smallest, segments = torch_scatter.scatter_max, torch_scatter.scatter_min, torch_scatter.segment_csr

    def f(x: Tensor, index: Tensor, indptr: Tensor) -> Any:
        h = x * 2
        match name:
            case "scatter_max":
                return largest(h, index, dim=0, dim_size=x.size(0))
            case "scatter_min":
                return smallest(h, index, 0, None, x.size(0))
            case "without a size":
                return largest(h, index, dim=0)
            case _:
                return segments(h, indptr, reduce=name)

    compiled = DOORS[door](f)
    for rows in (6, 9):
        index, indptr = torch.arange(rows) // 2, torch.tensor([0, 2, 2, 5, rows])
        results = []
        for call in (f, compiled):
            x = features(rows, 4, F64)
            x[1] = x[0]  # of equal numbers, the first gets the gradient
            x.requires_grad_()
            out = call(x, index, indptr)
            values = out[0] if isinstance(out, tuple) else out
            (values * values.detach().cos()).sum().backward()
            results.append((out, x.grad))
        torch.testing.assert_close(results[1], results[0])
    now = graphweave.counters()
    assert (now["compilations"], now["graph_breaks"], now["eager_fallbacks"]) == (1, 0, 0)
