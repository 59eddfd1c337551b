"""Kernels of random programs: well formed, faithful as text, and right under the interpreter of the loop IR."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest
import torch
from torch import Tensor

from graphweave.analysis.cones import map_type
from graphweave.analysis.facts import Facts
from graphweave.analysis.flow import extract
from graphweave.compiler.compile import optimise
from graphweave.compiler.plan import Plan, PlanName, make_plan
from graphweave.core.options import Options
from graphweave.core.types import UNIT, DType, Space
from graphweave.ir.loop import interp as loop
from graphweave.ir.loop.nodes import Role
from graphweave.ir.loop.parse import parse
from graphweave.ir.loop.show import show
from graphweave.ir.loop.verify import verify
from graphweave.ir.message.aten import TORCH_DTYPE
from graphweave.ir.message.infer import numel
from graphweave.ir.message.interp import interp
from graphweave.ir.message.nodes import Input, MapOf, Program, Push, Ref, Type
from graphweave.lower.parameters import Column, Flat, NodeTensor, Perm
from graphweave.lower.region import Lowered, lower
from graphweave.lower.schedule import Region
from tests.programs.compare import assert_close
from tests.programs.graphs import EdgeList
from tests.programs.random_programs import inputs, random_program

OPTIONS = (
    Options(),
    Options(wide=1, stash_width=0, prefetch_bytes=1, prefetch_distance=1),
    Options(fuse=False),
)
TINY = (
    EdgeList("three_nodes", torch.tensor([1, 0, 1, 0, 1]), torch.tensor([2, 0, 2, 2, 0]), 3, 3),
    EdgeList("wide", torch.tensor([1, 0, 1]), torch.tensor([3, 3, 0]), 2, 4),
    EdgeList("no_edges", torch.tensor([], dtype=torch.int64), torch.tensor([], dtype=torch.int64), 2, 1),
)


def plans(numbers: range, dtype: DType = DType.f32, options: Options = OPTIONS[0]) -> Iterator[tuple[str, Plan]]:
    """Plans of the programs with these numbers, each as it is and optimised."""
    for number in numbers:
        program = random_program(number, dtype)
        for how, subject in (("", program), (", optimised", optimise(program).program)):
            yield f"program {number}{how}", make_plan(PlanName("test"), Facts(subject), options, {})


@pytest.mark.parametrize("options", OPTIONS, ids=["default", "starved", "apart"])
def test_every_region_becomes_a_kernel_that_reads_back(options: Options) -> None:
    count = 0
    for name, plan in plans(range(120), options=options):
        assert not plan.refused, name
        for i, step in enumerate(plan.schedule.steps):
            if not isinstance(step, Region):
                continue
            for index in (DType.i32, DType.i64):
                kernel = lower(plan.facts, step, plan.schedule.stored, f"k{i}", options, index).kernel
                verify(kernel)
                assert parse(show(kernel)) == kernel, name
                count += 1
    assert count > 400


@pytest.mark.parametrize(
    "dtype", [pytest.param(DType.f32, id="f32", marks=pytest.mark.slow), pytest.param(DType.f64, id="f64")]
)
def test_kernels_compute_what_their_nodes_mean(dtype: DType) -> None:
    check(range(40, 52), dtype)


@pytest.mark.slow
def test_more_kernels_compute_what_their_nodes_mean() -> None:
    check(range(52, 300), DType.f64)


def check(numbers: range, dtype: DType) -> None:
    for name, plan in plans(numbers, dtype):
        for graph in TINY:
            given = inputs(plan.program, graph, 3)
            for i, kernel in plan.kernels.items():
                check_kernel(plan.program, kernel.lowered, given, f"{name} on {graph.name}, kernel {i}")


def check_kernel(program: Program, lowered: Lowered, given: Mapping[str, Tensor], what: str) -> None:
    """Run the kernel on the interpreter's values; its outputs must be the interpreter's too."""
    refs = {b.ref for b in lowered.bindings if isinstance(b, NodeTensor)}
    maps = {m for b in lowered.bindings for m in _maps(b)} | ({lowered.map} - {None})
    everything = sorted(refs | {_index_of(program, m) for m in maps})
    part = extract(program, [r for r, n in enumerate(program.nodes) if isinstance(n, Input)], everything)
    values = dict(zip(everything, interp(part.program, given), strict=True))
    rows = _row_counts(program, given)
    world = _World(program, values, rows)
    buffers: dict[str, Tensor] = {}
    for buffer, binding in zip(lowered.kernel.buffers, lowered.bindings, strict=True):
        if buffer.role in (Role.output, Role.total):
            sizes = [*([] if buffer.rows is None else [rows[_space(program, binding)]]), *buffer.shape]
            buffers[buffer.name] = torch.full(sizes, 77, dtype=TORCH_DTYPE[buffer.dtype])
        else:
            buffers[buffer.name] = world.buffer(binding, buffer.rows is not None)
    csrs = {csr.name: world.indptr(lowered.map) for csr in lowered.kernel.csrs if csr.positions is None}
    loop.run(lowered.kernel, buffers, csrs, {f"num_{s.name}": rows[s] for s in lowered.spaces})
    for buffer, binding in zip(lowered.kernel.buffers, lowered.bindings, strict=True):
        if buffer.role in (Role.output, Role.total) and isinstance(binding, NodeTensor):
            if _over_nothing(program, binding.ref, rows):
                continue  # the fold's identity, which the caller of the kernel replaces by `empty`
            want = values[binding.ref]
            got = buffers[buffer.name].reshape(want.shape)
            try:
                assert_close(got, want, reduction_length=64, floor=1.0)
            except AssertionError as wrong:
                raise AssertionError(f"{what}, %{binding.ref}: {wrong}") from None


class _World:
    """Formats in plain PyTorch, built independently of those that the runtime builds."""

    def __init__(self, program: Program, values: Mapping[Ref, Tensor], rows: Mapping[Space, int]) -> None:
        self.program, self.values, self.rows = program, values, rows

    def index(self, m: Ref) -> Tensor:
        """The map's index, int64, counted from 0."""
        index = self.values[_index_of(self.program, m)].long()
        return torch.where(index < 0, index + self.rows[map_type(self.program, m).cod], index)

    def indptr(self, m: Ref | None) -> Tensor:
        assert m is not None
        counts = torch.bincount(self.index(m), minlength=self.rows[map_type(self.program, m).cod])
        return torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)]).int()

    def buffer(self, binding: NodeTensor | Perm | Column | Flat, in_rows: bool) -> Tensor:
        """The values that a kernel reads. With `in_rows` it reads a node by rows, also the only row of shared data."""
        match binding:
            case NodeTensor(ref):
                t, value = self.program.types[ref], self.values[ref]
                assert isinstance(t, Type)
                return value.reshape(self.rows[t.space], numel(t.shape)) if in_rows else value.reshape(-1)
            case Perm(m):
                return torch.argsort(self.index(m), stable=True).int()
            case Column(m, other):
                return self.index(other)[torch.argsort(self.index(m), stable=True)].int()
            case Flat(m):
                return self.index(m).int()


def _maps(binding: NodeTensor | Perm | Column | Flat) -> tuple[Ref, ...]:
    match binding:
        case Perm(m) | Flat(m):
            return (m,)
        case Column(m, other):
            return (m, other)
        case _:
            return ()


def _index_of(program: Program, m: Ref) -> Ref:
    node = program.nodes[m]
    assert isinstance(node, MapOf)
    return node.index


def _space(program: Program, binding: NodeTensor | Perm | Column | Flat) -> Space:
    assert isinstance(binding, NodeTensor)
    t = program.types[binding.ref]
    assert isinstance(t, Type)
    return t.space


def _row_counts(program: Program, given: Mapping[str, Tensor]) -> dict[Space, int]:
    types = {getattr(n, "name", ""): t for n, t in zip(program.nodes, program.types, strict=True)}
    found = {t.space: len(given[name]) for name, t in types.items() if isinstance(t, Type) and t.space != UNIT and name}
    return {**found, UNIT: 1}


def _over_nothing(program: Program, ref: Ref, rows: Mapping[Space, int]) -> bool:
    node = program.nodes[ref]
    m = map_type(program, node.map) if isinstance(node, Push) else None
    return m is not None and m.cod == UNIT and not rows[m.dom]
