"""Programs on CUDA tensors without a device: on fake tensors, with launches that check their arguments."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from graphweave.compiler.compile import compile
from graphweave.compiler.request import Request
from graphweave.core.choices import Choices
from graphweave.core.options import Options, options_for
from graphweave.execute.build import build
from graphweave.frontends.calls.decompositions import decompositions
from graphweave.frontends.dynamo.targets import options_of
from graphweave.frontends.importing.importer import import_graph
from graphweave.ir.message.interp import apply
from graphweave.ir.message.parse import parse
from graphweave.passes.pass_facts import PassFacts
from graphweave.runtime import formats, index
from graphweave.runtime.memo import memo
from graphweave.runtime.triton_kernel import Launch, TritonKernel
from tests.codegen.triton_support import needs_triton
from tests.program_support import AS_IT_IS, built


def layer(x: Tensor, weight: Tensor, src: Tensor, dst: Tensor) -> Tensor:
    """A product on nodes, dropout on edges, a mean, a softmax over the features of a row."""
    h = x @ weight
    message = nn.functional.dropout(torch.relu(h.index_select(0, src)), 0.5)
    total = torch.zeros_like(h).index_add(0, dst, message)
    count = h.new_zeros(h.shape[0]).index_add(0, dst, message.new_ones(message.shape[0]))
    return torch.log_softmax(total / count.clamp(min=1).unsqueeze(1), 1)


@needs_triton
@pytest.mark.parametrize("nodes", [90, 10_000])
def test_nothing_leaves_the_device_and_nothing_is_asked_of_it(nodes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fake tensor's numbers cannot be read; a CPU tensor beside the others would be copied to the device."""
    launched: list[tuple[int, Launch]] = []

    def look(
        self: TritonKernel, programs: int, tensors: Sequence[Tensor], order: Tensor | None, groups: int,
        span: tuple[int, int], how: Launch,
    ) -> None:  # fmt: skip
        assert {t.device.type for t in (*tensors, *([] if order is None else [order]))} == {"cuda"}
        assert all(t.is_contiguous() for t in tensors) and 0 <= span[0] < span[1]
        launched.append((programs, how))

    monkeypatch.setattr(TritonKernel, "__call__", look)
    monkeypatch.setattr(formats, "cached", lambda key, tensors, build: build())
    monkeypatch.setattr(index, "place", lambda t: ())  # fake tensors have no address
    monkeypatch.setattr(memo, "kept", lambda fn, *args: fn(*args))
    with FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True), torch.device("cuda"):
        x, weight = torch.randn(nodes, 8), torch.randn(8, 8)
        src, dst = torch.zeros(5 * nodes, dtype=torch.int64), torch.zeros(5 * nodes, dtype=torch.int64)
        graph = make_fx(layer, decomposition_table=decompositions(), tracing_mode="symbolic")(x, weight, src, dst)
        options = options_of(graph, Choices())
        assert isinstance(options, Options) and (options.target, options.device) == ("triton", "cuda:0")
        imported = import_graph(graph)
        made = built(imported.program, options)
        assert made.plan.kernels and not made.plan.refused
        (out,) = made([x, weight, src, dst])
    assert out.shape == (nodes, 8) and out.device.type == "cuda"
    divided, once = nodes > 1 << 13, made.plan.prelude
    kernels = len(made.plan.kernels) + (0 if once is None else len(once.kernels))
    assert len(launched) > kernels if divided else len(launched) == kernels
    if divided:
        assert any(how.rows == 1 for _, how in launched), "the longest rows are divided"


SCALED = """
space V = 5
%0: V[3] f32 = input x
%1: unit[3] f32 = input c
%2: V[3] f32 = mul %0, %1
return %2
"""


@needs_triton
def test_constants_are_no_fake_tensors() -> None:
    """PyTorch compiles among fake tensors, which a constant that is moved to a device must not become."""
    program = parse(
        "space V = 5\n%0: V[3] f32 = input x\n%1: unit[3] f32 = input c\n%2: V[3] f32 = mul %0, %1\nreturn %2"
    )
    facts, value = PassFacts(options=options_for("triton", "meta")), torch.ones(3)
    with FakeTensorMode():
        (made,) = build(compile(Request(program, facts, road=AS_IT_IS, constants={1: value})))
        scope = made._runner._scope
    (constant,) = (value for name, value in scope.items() if name.startswith("constant"))
    assert constant.device.type == "meta" and not isinstance(constant, FakeTensor)


@pytest.mark.parametrize("call", ["aten.scalar_tensor.default(7, dtype=@torch.int64)", "aten.arange.default(7)"])
def test_tensors_that_the_compiler_makes_are_made_where_programs_run(call: str) -> None:
    program = parse(f"%0: unit[] i64 = call {call}\nreturn %0")
    assert apply(program.nodes[0], {}, program.types, lambda space: 1, device="meta").device.type == "meta"
    assert apply(program.nodes[0], {}, program.types, lambda space: 1).device.type == "cpu"
