"""Models whose rows stand in several dims, small: nothing on their edges is left to PyTorch.

One compilation serves all sizes, and results and all gradients equal eager mode's in float64.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

import graphweave
from bench import product_layers as layers
from graphweave.ir.message.nodes import Aten, Push
from graphweave.ir.message.show import show_type
from tests.captures import capture, check
from tests.support import by_default

pytestmark = pytest.mark.usefixtures("fresh_compiler")

WIDTH = 6
Sizes = dict[str, int]


class InteractionNet(nn.Module):
    """Battaglia et al. 2016, as weather models on meshes use it (Oskarsson et al. 2023): one graph for a whole batch.

    e' = e + f(e, send[src], rec[dst]),  rec' = rec + g(rec, sum over edges of e'): [B, N, F], [B, E, F].
    """

    def __init__(self, batched_edges: bool = True) -> None:
        super().__init__()
        self.edges, self.nodes = layers.network(3 * WIDTH, WIDTH), layers.network(2 * WIDTH, WIDTH)
        self.batched_edges = batched_edges

    def forward(self, send: Tensor, rec: Tensor, edges: Tensor, src: Tensor, dst: Tensor) -> tuple[Tensor, Tensor]:
        if not self.batched_edges:
            edges = edges[0].expand(send.shape[0], -1, -1)
        at_ends = send.index_select(-2, src), rec.index_select(-2, dst)
        message = self.edges(torch.cat([edges, *at_ends], -1))
        total = torch.zeros_like(rec).scatter_add(-2, dst.view(1, -1, 1).expand_as(message), message)
        return rec + self.nodes(torch.cat([rec, total], -1)), edges + message


def of_a_mesh(sizes: Sizes, random: torch.Generator) -> list[Tensor]:
    b, n, m, e = (sizes[k] for k in "BNME")
    return [
        numbers((b, m, WIDTH), random), numbers((b, n, WIDTH), random), numbers((b, e, WIDTH), random),
        torch.randint(m, (e,), generator=random), torch.randint(n, (e,), generator=random),
    ]  # fmt: skip


def of_a_mesh_with_edges(sizes: Sizes, random: torch.Generator) -> list[Tensor]:
    """The first item's edges are those of the whole batch, so they exist in an empty batch, too."""
    given = of_a_mesh(sizes, random)
    given[2] = numbers((max(sizes["B"], 1), sizes["E"], WIDTH), random)
    return given


def of_a_protein(sizes: Sizes, random: torch.Generator) -> list[Tensor]:
    b, n, k = (sizes[name] for name in "BNK")
    near = torch.randint(n, (b, n, k), generator=random)
    mask = (torch.rand(b, n, generator=random) > 0.2).double()
    return [numbers((b, n, WIDTH), random), numbers((b, n, k, WIDTH), random), near, mask]


def of_sensors(sizes: Sizes, random: torch.Generator) -> list[Tensor]:
    b, n, e = (sizes[k] for k in "BNE")
    ends = [torch.randint(n, (e,), generator=random) for _ in range(2)]
    return [numbers((b, WIDTH, n, 3), random), numbers((e,), random), *ends]


def of_atoms(sizes: Sizes, random: torch.Generator) -> list[Tensor]:
    b, n, e = (sizes[k] for k in "BNE")
    ends = [torch.randint(n, (e,), generator=random) for _ in range(2)]
    return [numbers((b, n, WIDTH), random), numbers((b, n, 2, 3), random), *ends]


def numbers(shape: tuple[int, ...], random: torch.Generator) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=random).requires_grad_()


@dataclass(frozen=True)
class Model:
    make: Callable[[], nn.Module]
    arguments: Callable[[Sizes, torch.Generator], list[Tensor]]
    left: frozenset[str] = frozenset()
    """Calls on rows that stay PyTorch's."""
    compilations: int = 1


MODELS = {
    "interaction net": Model(InteractionNet, of_a_mesh),
    "interaction net, edges of the graph": Model(
        lambda: InteractionNet(batched_edges=False),
        of_a_mesh_with_edges,
        frozenset({"aten.select.int", "aten.select_backward.default"}),
    ),
    # a mask [B, N] may have features
    "protein encoder": Model(lambda: layers.ProteinEncoder(WIDTH), of_a_protein, compilations=2),
    "traffic": Model(lambda: layers.TrafficConvolution(WIDTH), of_sensors),
    "vector perceptrons": Model(lambda: layers.VectorPerceptrons(WIDTH, 2), of_atoms),
}
SIZES: tuple[Sizes, ...] = (
    {"B": 3, "N": 7, "M": 5, "E": 19, "K": 4}, {"B": 2, "N": 9, "M": 11, "E": 30, "K": 3},
    {"B": 5, "N": 5, "M": 5, "E": 5, "K": 5}, {"B": 4, "N": 20, "M": 8, "E": 70, "K": 6},
)  # fmt: skip
EDGE_CASES: tuple[Sizes, ...] = (
    {"B": 1, "N": 6, "M": 4, "E": 9, "K": 1}, {"B": 2, "N": 1, "M": 1, "E": 3, "K": 2},
    {"B": 2, "N": 4, "M": 3, "E": 0, "K": 2}, {"B": 0, "N": 4, "M": 3, "E": 6, "K": 2},
)  # fmt: skip


def made(name: str) -> nn.Module:
    torch.manual_seed(0)
    return MODELS[name].make().double()


def arguments(name: str, sizes: Sizes, seed: int = 0) -> list[Tensor]:
    return MODELS[name].arguments(sizes, torch.Generator().manual_seed(seed))


def step(f: Callable[..., object], model: nn.Module, args: list[Tensor]) -> tuple[Tensor, ...]:
    """Results, and gradients of inputs and parameters."""
    given = [a.detach().clone().requires_grad_(a.requires_grad) for a in args]
    result = f(*given)
    outs = result if isinstance(result, tuple) else (result,)
    weights = [torch.linspace(-1, 1, o.numel(), dtype=o.dtype).view_as(o) for o in outs]
    loss = sum((o * w).sum() for o, w in zip(outs, weights, strict=True))
    leaves = [a for a in (*given, *model.parameters()) if a.requires_grad]
    grads = torch.autograd.grad(loss, leaves, allow_unused=True)
    return *outs, *(torch.zeros_like(a) if g is None else g for a, g in zip(leaves, grads, strict=True))


@pytest.mark.parametrize("name", by_default(MODELS, "interaction net", "protein encoder"))
def test_one_compilation_gives_eager_modes_numbers_at_all_sizes(name: str) -> None:
    model = made(name)
    compiled = graphweave.compile(model)
    graphweave.reset_counters()
    for seed, sizes in enumerate(SIZES):
        args = arguments(name, sizes, seed)
        torch.testing.assert_close(step(compiled, model, args), step(model, model, args))
    counted = graphweave.counters()
    assert counted["compilations"] == MODELS[name].compilations
    assert counted["graph_breaks"] == counted["eager_fallbacks"] == 0
    assert counted["kernel_launches"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_numbers_at_sizes_of_nothing_and_one(name: str) -> None:
    model = made(name)
    compiled = graphweave.compile(model)
    for seed, sizes in enumerate((SIZES[0], *EDGE_CASES)):
        args = arguments(name, sizes, seed)
        torch.testing.assert_close(step(compiled, model, args), step(model, model, args))


VIEWS = frozenset({"aten.reshape.default", "aten.permute.default"})
"""Calls by which arguments and results in several dims become rows, and rows become results."""


@pytest.mark.parametrize("name", by_default(MODELS, "interaction net, edges of the graph", "traffic"))
def test_no_call_on_features_is_left_to_pytorch(name: str) -> None:
    """Forward and backward: PyTorch's calls compute numbers of rows, and make views at the borders."""
    (captured,) = capture(made(name), *arguments(name, SIZES[0]))
    check(captured)
    nodes = captured.imported.program.nodes
    calls = {n.target for n in nodes if isinstance(n, Aten) and "f64" in show_type(n.type)}
    assert calls <= VIEWS | MODELS[name].left, f"{calls - VIEWS} stayed calls"
    assert any(isinstance(n, Push) for n in nodes)
