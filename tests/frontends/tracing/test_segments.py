"""pyg_lib's segment_matmul is read as a typed product. No package index has pyg_lib, so a stand-in has its name."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

import graphweave as gw


def _segment_matmul(x: Tensor, ptr: Tensor, w: Tensor) -> Tensor:
    return torch.cat([x[ptr[i] : ptr[i + 1]] @ w[i] for i in range(w.shape[0])])


@pytest.fixture
def pyg_lib() -> Iterator[None]:
    if hasattr(torch.ops.pyg, "segment_matmul"):
        yield
        return
    with torch.library._scoped_library("pyg", "FRAGMENT") as library:
        library.define("segment_matmul(Tensor input, Tensor ptr, Tensor other) -> Tensor")
        library.impl("segment_matmul", _segment_matmul, "CPU")
        library.impl("segment_matmul", lambda x, ptr, w: x.new_empty(x.shape[0], w.shape[2]), "Meta")
        yield


@pytest.mark.usefixtures("pyg_lib")
def test_segment_matmul_is_a_typed_product() -> None:
    x, w = torch.randn(40, 16, dtype=torch.float64), torch.randn(4, 16, 9, dtype=torch.float64)
    compiled = gw.compile(lambda x, ptr, w: torch.ops.pyg.segment_matmul(x, ptr, w))
    for ends in ([0, 12, 12, 30, 40], [0, 0, 0, 0, 40], [0, 10, 20, 30, 40]):
        ptr = torch.tensor(ends)
        torch.testing.assert_close(compiled(x, ptr, w), _segment_matmul(x, ptr, w))
    assert "matmul" in str(gw.explain(compiled, x, ptr, w, detail="ir"))
