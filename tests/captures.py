"""Captured graphs for tests: the joint graph that a partition function receives, with the real values it ran on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from functorch.compile import default_partition, make_boxed_func
from torch import Tensor, fx
from torch._dynamo.backends.common import aot_autograd
from torch.fx.experimental import _config as shape_config

from graphweave.certificate.random_numbers import CounterBased
from graphweave.core.types import Space
from graphweave.frontends.calls.decompositions import decompositions
from graphweave.frontends.importing.importer import Imported, import_graph
from graphweave.ir.message.interp import interp
from graphweave.ir.message.parse import parse
from graphweave.ir.message.show import show
from graphweave.ir.message.verify import verify


@dataclass
class Capture:
    """One graph of a call: joint (forward and backward) or inference; `inputs` by placeholder name."""

    gm: fx.GraphModule
    imported: Imported
    inputs: dict[str, Any] = field(default_factory=dict)

    def targets(self) -> list[str]:
        """ATen calls that stayed, symbolic arithmetic and clones of results aside, sorted."""
        nodes = self.imported.program.nodes
        kept = [n.target for n in nodes if type(n).__name__ == "Aten"]
        return sorted(t for t in kept if not t.startswith("builtin.") and t not in _HARMLESS)

    def kinds(self) -> list[str]:
        return [type(n).__name__ for n in self.imported.program.nodes]


_HARMLESS = frozenset({"aten.sym_size.int", "aten._assert_scalar.default", "aten.scalar_tensor.default"})


def capture(f: Callable[..., Any], *args: Any, dynamic: bool = True, whole: bool = True) -> list[Capture]:
    """Run f(*args) forward, and backward where it has gradients, and give every graph captured: one if `whole`."""
    captures: list[Capture] = []

    def partition(gm: fx.GraphModule, joint_inputs: Any, **kwargs: Any) -> Any:
        captures.append(Capture(_copied(gm), import_graph(gm, kwargs["num_fwd_outputs"])))
        halves = default_partition(gm, joint_inputs, **kwargs)
        for half in halves:
            half.meta["capture"] = len(captures) - 1
        return halves

    def compiler(is_backward: bool, inference: bool) -> Callable[..., Any]:
        def compile_graph(gm: fx.GraphModule, example_inputs: Any) -> Any:
            if inference:
                captures.append(Capture(_copied(gm), import_graph(gm)))
            mine = captures[gm.meta.get("capture", -1)]
            names = [n.name for n in gm.graph.nodes if n.op == "placeholder"]

            def run(*values: Any) -> Any:
                seen = {n: v for n, v in zip(names, values, strict=True) if not is_backward or n.startswith("tangents")}
                # a graph may run several times; gradients come in reverse order, so the last are the first call's
                mine.inputs = {
                    **mine.inputs,
                    **{n: _own(v) for n, v in seen.items() if is_backward or n not in mine.inputs},
                }
                return gm(*values)

            return make_boxed_func(run)

        return compile_graph

    backend = aot_autograd(
        fw_compiler=compiler(False, False),
        bw_compiler=compiler(True, False),
        inference_compiler=compiler(False, True),
        partition_fn=partition,
        decompositions=decompositions(),
    )
    torch._dynamo.reset()
    patch = {"capture_dynamic_output_shape_ops": True, "capture_scalar_outputs": True}
    if not dynamic:
        patch["automatic_dynamic_shapes"] = False
    with torch._dynamo.config.patch(patch), shape_config.patch(use_duck_shape=False):
        out = torch.compile(f, backend=backend, dynamic=dynamic, fullgraph=whole)(*args)
        outs = [o for o in torch.utils._pytree.tree_leaves(out) if isinstance(o, Tensor) and o.requires_grad]
        if outs:
            generator = torch.Generator().manual_seed(7)
            weights = [torch.randn(o.shape, generator=generator, dtype=torch.float64).to(o.dtype) for o in outs]
            torch.autograd.backward(outs, weights)
    return captures


def _copied(gm: fx.GraphModule) -> fx.GraphModule:
    """The graph as it is now: partitioning edits it."""
    graph, renamed = fx.Graph(), {}
    result = graph.graph_copy(gm.graph, renamed)
    graph.output(result)
    for old, new in renamed.items():
        new.name = old.name
    return fx.GraphModule(gm, graph)


def _own(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, Tensor) else value


class _Recorder(fx.Interpreter):
    """Runs a graph and learns what its symbols stood for."""

    def __init__(self, gm: fx.GraphModule) -> None:
        super().__init__(gm)
        self.symbols: dict[str, int] = {}

    def run_node(self, n: fx.Node) -> Any:
        value, fake = super().run_node(n), n.meta.get("val")
        if isinstance(value, Tensor) and isinstance(fake, Tensor):
            assert value.dim() == fake.dim(), n
            for real, size in zip(value.shape, fake.shape, strict=True):
                self._learn(size, real)
        elif isinstance(fake, torch.SymInt):
            self._learn(fake, value)
        return value

    def value(self, size: Any) -> int:
        if not isinstance(size, torch.SymInt):
            return int(size)
        expr = size.node.expr
        return int(expr.subs({s: self.symbols[str(s)] for s in expr.free_symbols}))

    def _learn(self, size: Any, real: int) -> None:
        if isinstance(size, torch.SymInt) and size.node.expr.is_Symbol:
            self.symbols[str(size.node.expr)] = real


def check(captured: Capture, tolerance: float = 1e-12) -> None:
    """The program gives what the graph gives, on the values that the graph ran on; it prints, parses and verifies."""
    program = captured.imported.program
    verify(program)
    assert parse(show(program)).nodes == program.nodes
    names = [n.name for n in captured.gm.graph.nodes if n.op == "placeholder"]
    recorder = _Recorder(captured.gm)
    torch.manual_seed(11)
    with CounterBased():
        want = recorder.run(*(_own(captured.inputs[n]) for n in names), enable_io_processing=False)
    rows: dict[Space, int] = {}
    for space, size in captured.imported.space_rows.items():
        rows[space] = recorder.value(size)
    given = {n: _own(captured.inputs[n]) for n in names}
    for ref, value in captured.imported.attributes.items():
        given[program.nodes[ref].name] = value  # type: ignore[union-attr]
    torch.manual_seed(11)
    got = interp(program, given, rows)
    flat = torch.utils._pytree.tree_leaves(want, is_leaf=lambda v: v is None)
    assert len(flat) == len(got)
    for i, (w, g) in enumerate(zip(flat, got, strict=True)):
        _same(f"output {i}", w, g, tolerance)


def _same(where: str, want: Any, got: Any, tolerance: float) -> None:
    if not isinstance(want, Tensor):
        assert want == got, f"{where}: {want} expected, got {got}"
        return
    assert isinstance(got, Tensor) and got.shape == want.shape and got.dtype == want.dtype, f"{where}: {want} {got}"
    if want.dtype.is_floating_point:
        finite = want[want.isfinite()].abs()
        scale = finite.max().item() if finite.numel() else 1.0
        torch.testing.assert_close(
            got, want, rtol=0, atol=tolerance * max(scale, 1e-3), equal_nan=True, msg=lambda m: f"{where}: {m}"
        )
    else:
        assert torch.equal(got, want), f"{where}: {want} expected, got {got}"
