"""Complex numbers: rows that move along edges are part of kernels, other calls stay one call each."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import graphweave
from tests.captures import capture, check
from tests.layout_support import DOORS, compare
from tests.support import by_default, features, random_graph

pytestmark = pytest.mark.usefixtures("fresh_compiler")

Layer = Callable[[Tensor, Tensor, Tensor], Tensor]


def magnetic(x: Tensor, w: Tensor, edge_index: Tensor) -> Tensor:
    """Two hops along edges whose weight is a phase, as in a magnetic Laplacian, and a complex weight for each hop."""
    src, dst = edge_index
    phase = torch.polar(torch.ones(src.shape[0], dtype=x.dtype), (src - dst).to(x.dtype) * 0.1)
    z, weights = torch.complex(x[:, :3], x[:, 3:]), torch.view_as_complex(w[:3].view(3, 3, 2))
    out = z * weights[0]
    for k in (1, 2):
        z = torch.zeros_like(z).index_add(0, dst, z[src] * phase[:, None])
        out = out + z * weights[k]
    return torch.view_as_real(out).flatten(1)


def rotations(x: Tensor, w: Tensor, edge_index: Tensor) -> Tensor:
    """As RotatE scores triples: the length of a rotated head minus the tail."""
    z = torch.view_as_complex(x.view(-1, 3, 2).contiguous())
    turn = torch.exp(1j * w[0, :3])
    return (z[edge_index[0]] * turn - z[edge_index[1]]).abs().sum(1, keepdim=True)


def parts_and_angles(x: Tensor, w: Tensor, edge_index: Tensor) -> Tensor:
    """Conjugates, real and imaginary parts, angles, and a concatenation; the sum by scatter_add."""
    z = torch.complex(x[:, :3], x[:, 3:] * w[0, :3])
    m = z[edge_index[0]] * z[edge_index[1]].conj() / 2 - 0.5j
    m = torch.cat([m, -m * 0.3], 1)
    at = edge_index[1][:, None].expand(-1, 6)
    out = torch.zeros(x.shape[0], 6, dtype=m.dtype).scatter_add(0, at, m) + (1 + 2j)
    return torch.cat([out.real, out.imag, out.angle(), out.sum(1, keepdim=True).real], 1)


def mixed(x: Tensor, w: Tensor, edge_index: Tensor) -> Tensor:
    """A product of complex matrices, and real numbers among complex ones."""
    z = torch.complex(x, x.sin())
    real = x[edge_index[0]].sin()
    h = z[edge_index[0]] * x[edge_index[1]] + real
    out = torch.zeros_like(z).index_add(0, edge_index[1], h) @ torch.complex(w[:6, :2], w[:6, 1:3])
    return torch.view_as_real(out).flatten(1) * torch.fft.fft(h).real.sum() * real.sum()


def fourier(x: Tensor, w: Tensor, edge_index: Tensor) -> Tensor:
    """A filter on the frequencies of each row, and a sum of neighbours."""
    h = torch.fft.irfft(torch.fft.rfft(x, dim=-1) * torch.complex(w[0, :4], w[1, :4]), n=6, dim=-1)
    return torch.zeros_like(h).index_add(0, edge_index[1], h[edge_index[0]])


LAYERS: dict[str, Layer] = {f.__name__: f for f in (magnetic, rotations, parts_and_angles, mixed, fourier)}
KEPT = ("rotations",)
WITH_FFT = ("mixed", "fourier")
"""Layers that eager mode refuses for no rows: MKL's transform does."""


def arguments(nodes: int, edges: int) -> tuple[Tensor, Tensor, Tensor]:
    x, w = features(nodes, 6, torch.float64, seed=nodes), features(9, 6, torch.float64)
    return x, w, random_graph(nodes, nodes, edges)


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("name", by_default(LAYERS, *KEPT))
def test_values_and_gradients(name: str, door: str) -> None:
    compare(LAYERS[name], [arguments(7, 20), arguments(9, 4), arguments(4, 13)], door)


@pytest.mark.parametrize("name", by_default(LAYERS, "magnetic"))
def test_no_rows_and_few(name: str) -> None:
    sizes = [(0, 0)] * (name not in WITH_FFT) + [(1, 2), (2, 1)]
    compare(LAYERS[name], [arguments(*size) for size in sizes], "graphweave.compile")


@pytest.mark.parametrize("name", LAYERS)
def test_nothing_complex_is_left_on_edges(name: str) -> None:
    x, w, edges = arguments(7, 20)
    (captured,) = capture(LAYERS[name], x.requires_grad_(), w.requires_grad_(), edges)
    check(captured)
    moved = ("index", "scatter", "gather", "polar", "abs", "angle", "sgn")
    assert not [t for t in captured.targets() if t.removeprefix("aten.").startswith(moved)]


def test_a_filter_of_each_row_is_one_call_on_complex_numbers() -> None:
    (captured,) = capture(fourier, *arguments(7, 20))
    calls = [t for t in captured.targets() if "fft" in t or "mul" in t or "complex" in t]
    assert calls == ["aten._fft_c2r.default", "aten._fft_r2c.default", "aten.complex.default", "aten.mul.Tensor"]


def test_complex_features_and_weights_as_arguments() -> None:
    def layer(z: Tensor, w: Tensor, edge_index: Tensor) -> Tensor:
        return torch.zeros_like(z).index_add(0, edge_index[1], z[edge_index[0]] * w)

    x, w, edges = arguments(7, 20)
    z, w = torch.view_as_complex(x.view(7, 3, 2)), torch.view_as_complex(w.view(9, 3, 2))[0]
    results = []
    for f in (layer, graphweave.compile(layer)):
        given = [t.clone().requires_grad_() for t in (z, w)]
        out = f(*given, edges)
        results.append((out.detach(), *torch.autograd.grad((out * out.detach().conj()).abs().sum(), given)))
    torch.testing.assert_close(results[1], results[0])
