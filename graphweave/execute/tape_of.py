"""Plan -> tape: decides what is called when, and which kernels run in one native call."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property

from graphweave.analysis.cones import map_type, type_of
from graphweave.analysis.flow import ancestors, has_effects, is_integral, is_tensor, with_viewed
from graphweave.analysis.typed import call_operands
from graphweave.compiler.contract import ANYHOW, Contract
from graphweave.compiler.plan import Plan
from graphweave.core.calls import named
from graphweave.core.types import UNIT, Space
from graphweave.execute.calls import NodeCalls
from graphweave.execute.cpp_step import CppStep
from graphweave.execute.cpp_stretch import untransposed
from graphweave.execute.demands import Demands
from graphweave.execute.plan_memory import plan_memory
from graphweave.execute.region_step import RegionStep
from graphweave.execute.row_chunks import in_chunks
from graphweave.execute.row_needs import UNLIMITED, RowNeeds
from graphweave.execute.runner_traits import RunnerTraits
from graphweave.execute.space_counts import SpaceCounts
from graphweave.execute.travel import Travel, TwoParts, travels
from graphweave.ir.message import nodes as ir
from graphweave.ir.message.infer import numel
from graphweave.ir.message.layouts import Promise
from graphweave.ir.tape import nodes as tape
from graphweave.ir.tape.limits import StepLimit
from graphweave.ir.tape.types import Given
from graphweave.ir.tape.verify import verify
from graphweave.lower.row_chains import RowChain
from graphweave.lower.schedule import Region, TorchCall


def tape_of(
    plan: Plan, kernels: Mapping[int, RegionStep], calls: NodeCalls, contract: Contract = ANYHOW, *,
    prelude: Mapping[int, RegionStep] | None = None, needs: RowNeeds = UNLIMITED,
) -> tape.Tape:  # fmt: skip
    """The verified tape of a plan for a runner that calls PyTorch. `prelude` are the kernels of the plan's prelude, and
    the `contract` says what calls return and look at."""

    def traits(of: Mapping[int, RegionStep], calls: NodeCalls) -> RunnerTraits:
        drivable = frozenset() if contract.verify else frozenset(i for i, k in of.items() if k.drivable)
        own = not plan.options.standalone  # a library has transposed its weights
        return RunnerTraits(drivable.__contains__, lambda r: calls.of(r).spaces, transposes=own)

    def prelude_tape(plan: Plan, narrow: frozenset[ir.Ref]) -> tape.Tape:
        own = prelude or {}
        return TapeMaker(plan, own, traits(own, calls.prelude), Contract(verify=contract.verify), narrow=narrow).make()

    maker = TapeMaker(plan, kernels, traits(kernels, calls), contract, needs=needs)
    if plan.prelude is not None:
        maker.make_once(plan.prelude, prelude_tape)
    return finished(maker.make())


def finished(made: tape.Tape) -> tape.Tape:
    """A tape with its memory planned, verified."""
    planned = plan_memory(made)
    verify(planned)
    return planned


class TapeMaker:
    """Makes the tape of a plan, without frees. With `narrow`, the plan is a prelude: its indices in `narrow` are held
    in 32 bits if they fit, and row counts that no value tells are asked for. Native calls compute the rows that `needs`
    says."""

    def __init__(
        self,
        plan: Plan,
        kernels: Mapping[int, RegionStep],
        traits: RunnerTraits,
        contract: Contract = ANYHOW,
        *,
        outputs: Sequence[ir.Ref | None] | None = None,
        narrow: frozenset[ir.Ref] | None = None,
        needs: RowNeeds = UNLIMITED,
    ) -> None:
        """`outputs` are what the tape gives, unless the contract says it."""
        self._plan, self._program, self._contract, self._traits = plan, plan.program, contract, traits
        self._kernels, self._demands, self._needs = kernels, Demands(plan, kernels), needs
        self._outputs = plan.program.outputs[: contract.num_outputs] if outputs is None else tuple(outputs)
        self._promises = promises = contract.promises
        self._travel = Travel(plan, self._outputs, self._outputs[: len(promises)] if promises else self._outputs)
        self._is_prelude, self._narrow = narrow is not None, narrow or frozenset()
        self._steps: list[tape.Step] = []
        self._there: dict[ir.Ref, Given] = {}  # values that the steps so far have made; None for what is no value
        self._written: set[ir.Ref] = set()  # values that kernels write
        self._waiting: list[int] = []  # kernels for the next native call
        self._awaited: set[ir.Ref] = set()  # values that the waiting kernels write
        self._writers = {r: i for i, kernel in kernels.items() for r in kernel.writes}
        self._taken: set[int] = set()  # steps of the schedule that have been added, or wait
        self._begun: set[ir.Ref] = set()  # rows that travel between ranks, or have come
        self._once: frozenset[ir.Ref] = frozenset()
        self._counted = {UNIT}
        self._asked: list[Space] = []
        self._counts = SpaceCounts(
            plan.program, self._there, self._ensure, traits.spaces_of_call, asks=self._is_prelude
        )  # fmt: skip
        self._sizes_of = [[u for u in us if _is_size(plan.program.nodes[u])] for us in plan.facts.flow.users]
        refused = (s.members for i, s in enumerate(plan.schedule.steps) if isinstance(s, Region) and i not in kernels)
        self._refused = {r for members in refused for r in members}
        self._constants = tuple(r for r, n in enumerate(plan.program.nodes) if self._is_constant(r, n))
        inputs = (r for r, n in enumerate(plan.program.nodes) if isinstance(n, ir.Input))
        self._inputs = tuple(r for r in inputs if r not in self._constants)
        self._there.update((r, r) for r in sorted((*self._constants, *self._inputs)))
        self._watch()

    def _is_constant(self, ref: ir.Ref, node: ir.Node) -> bool:
        return ref in self._traits.there or (isinstance(node, ir.Input) and node.name in self._plan.constants)

    # -------------------------------------------------------- before the first call

    def _watch(self) -> None:
        """Look for unseen edits of index tensors before anything that was made from them is used. The prelude looks at
        its inputs itself."""
        if self._contract.watches is None:
            return
        indices = {n.index for n in self._program.nodes if isinstance(n, ir.MapOf)}
        for r in self._inputs:
            if r in indices and r not in self._plan.prelude_inputs and is_tensor(self._program, r):
                self._steps.append(tape.LookForEdits(r))

    def make_once(self, prelude: Plan, make: Callable[[Plan, frozenset[ir.Ref]], tape.Tape]) -> None:
        """Add the step that follows the tape of the prelude; `make` makes that, of the prelude and of those of its
        indices that may be held in 32 bits."""
        plan, hoisted = self._plan, self._plan.hoisted
        nested = make(prelude, self._narrow_in(prelude))
        rows = self._rows_of(nested.rows)
        given_out = with_viewed(plan.program, self._contract.watches or ())
        watched = (i for i, r in enumerate(hoisted) if r in given_out and is_tensor(plan.program, r))
        moves = (n for n in prelude.program.nodes if isinstance(n, ir.Exchange | ir.ExchangeBack | ir.AllReduce))
        ranks = next((n.group if isinstance(n, ir.AllReduce) else n.link.group for n in moves), None)
        reads = tuple(map(self._value, plan.prelude_inputs))
        inputs = enumerate(plan.prelude_inputs) if self._contract.watches is not None else ()
        looks = (i for i, r in inputs if is_tensor(plan.program, r))
        shared = self._contract.cuda_graphs  # a captured graph reads the memory that the calls before it have read
        self._steps.append(tape.OnceAGraph(hoisted, reads, rows, nested, tuple(looks), tuple(watched), ranks, shared))
        self._once = frozenset(hoisted)
        self._there.update((r, r) for r in hoisted)
        self._there.update((r, None) for r in plan.facts.hoist.checks)

    def _narrow_in(self, prelude: Plan) -> frozenset[ir.Ref]:
        """Indices that the prelude makes and that only maps read, both in the prelude and here, as nodes of the
        prelude."""
        here = set(self._plan.facts.hoist.only_maps(self._plan.hoisted))
        here.difference_update(r for r in self._outputs if r is not None and r not in self._contract.private)
        pairs = zip(self._plan.hoisted, prelude.program.outputs, strict=False)  # the checks follow in `outputs`
        return frozenset(prelude.facts.hoist.only_maps([new for old, new in pairs if old in here and new is not None]))

    # -------------------------------------------------------- steps

    def make(self) -> tape.Tape:
        chains = {chain.steps[0]: chain for chain in self._plan.schedule.chains}
        for i in range(len(self._plan.schedule.steps)):
            if i in chains:
                self._in_chunks(chains[i])
            else:
                self._step(i)
        self._run_waiting()
        for r in self._outputs:
            if r is not None:
                self._ensure(r)
        outputs = self._settle()
        return tape.Tape(
            str(self._plan.name), self._inputs, tuple(self._steps), outputs, tuple(self._asked), self._constants
        )

    def _in_chunks(self, chain: RowChain) -> None:
        """Add the steps of a chain, those that depend on its rows for a chunk of rows after the other."""
        self._run_waiting()
        self._rows_of((chain.space,))
        begin = len(self._steps)
        for i in chain.steps:
            self._step(i)
        self._run_waiting()
        self._steps[begin:] = in_chunks(self._steps[begin:], chain, self._program, self._constants)

    def _step(self, i: int) -> None:
        """Add step i of the schedule, unless an earlier one has needed what its kernel writes."""
        if i in self._taken:
            return
        self._taken.add(i)
        if self._comes_after_waiting(i):
            self._run_waiting()
        if i not in self._kernels:
            self._outside(self._plan.schedule.steps[i])
        elif not self._traits.joins(i):
            self._run_kernel(i)
        elif (parts := self._in_two(i)) is not None:
            self._run_waiting()
            self._run_parts(i, parts)
        else:
            self._let_wait(i)

    def _comes_after_waiting(self, i: int) -> bool:
        """Whether step i comes after the waiting kernels even if it needs none of their results: it is a kernel that
        runs by itself or needs rows that are still on their way, a region that calls compute, a call that has effects,
        or any call in an order by memory."""
        if i in self._kernels:
            return not self._traits.joins(i) or self._waits(i)
        step = self._plan.schedule.steps[i]
        if not self._traits.in_order:
            return False
        return isinstance(step, Region) or self._plan.schedule.by_memory or has_effects(self._program, step.ref)

    def _let_wait(self, i: int) -> None:
        """Let kernel i wait for the next native call. The indices, values and row counts that it needs are there by
        then: what computes them comes before that call, or the kernels that wait already run first."""
        maps, spaces = self._maps_and_spaces((i,))
        for m in maps:
            self._index_of(m)
        for r in self._kernels[i].reads:
            if r not in self._awaited:
                self._value(self._matrix_of(r) or r)
        self._rows_of(spaces)
        self._waiting.append(i)
        self._awaited.update(self._kernels[i].writes)

    def _run_waiting(self) -> None:
        """Add the native calls of the waiting kernels."""
        waiting, self._waiting = self._waiting, []
        self._awaited.clear()
        for members in self._traits.divide(waiting):
            if members:
                self._run_kernels(members)

    def _outside(self, step: Region | TorchCall) -> None:
        """Compute a step that has no kernel, unless that comes later."""
        if not self._traits.in_order:
            return
        if isinstance(step, Region):
            for r in step.members:
                self._ensure(r)
        elif isinstance(node := self._program.nodes[step.ref], ir.ExchangeBack | ir.Exchange) and travels(node):
            self._begin(step.ref, node)
        elif untransposed(self._program, step.ref) is None:  # the kernels that read it may transpose it themselves
            self._ensure(step.ref)

    def _run_kernels(self, members: Sequence[int]) -> None:
        """Add one native call of kernels that follow one another."""
        steps = [s for i in members if isinstance(s := self._kernels[i], CppStep)]
        kept = self._demands.of(self._outputs).union(self._narrow, self._demands.read_elsewhere(members))
        written = dict.fromkeys(r for step in steps for r in step.writes)
        writes = tuple(r for r in written if r in kept)
        if not writes:  # calls of PyTorch's computed in a way of their own what the kernels were for
            return
        read = dict.fromkeys(r for step in steps for r in step.reads if r not in written)
        turns = {r: x for r in read if (x := self._matrix_of(r)) is not None}
        maps, spaces = self._maps_and_spaces(members)
        indices = tuple(map(self._index_of, maps))
        reads = tuple(dict.fromkeys(self._value(turns.get(r, r)) for r in read))
        self._steps.append(
            tape.RunKernels(
                self._rows_of(spaces), maps, indices, reads, writes,
                tuple(tape.Member(i, s.reads, s.writes, self._limit(i)) for i, s in zip(members, steps, strict=True)),
                tuple(tape.Transpose(r, x) for r, x in turns.items()),
                self._inside(steps, turns, kept),
                self._rooms(writes),
            )
        )  # fmt: skip
        self._wrote(writes)

    def _maps_and_spaces(self, members: Sequence[int]) -> tuple[tuple[ir.Ref, ...], tuple[Space, ...]]:
        """The maps that kernels of one native call read or that tell their limits, and the spaces whose rows they
        need."""
        kernels, program = [self._kernels[i] for i in members], self._program
        limits = [limit for i in members if (limit := self._limit(i)) is not None]
        told_by = sorted({m for limit in limits for m in limit.maps})
        told = sorted({s for limit in limits for s in limit.spaces}, key=lambda s: s.name)
        ends = (map_type(program, m).cod for m in told_by)
        maps = dict.fromkeys((*(m for kernel in kernels for m in kernel.maps), *told_by))
        return tuple(maps), tuple(dict.fromkeys((*(s for kernel in kernels for s in kernel.spaces), *ends, *told)))

    def _matrix_of(self, ref: ir.Ref) -> ir.Ref | None:
        """The matrix of which `ref` is the transpose that a native call makes itself, if it is one."""
        return untransposed(self._program, ref) if self._traits.transposes else None

    def _inside(
        self, steps: Sequence[CppStep], turns: Iterable[ir.Ref], kept: frozenset[ir.Ref]
    ) -> tuple[tape.Inside, ...]:
        """The values that only these kernels read, each in a slot of its own."""
        types = ((r, type_of(self._program, r)) for r in turns)
        sizes = [(r, UNIT, numel(t.shape) * t.dtype.itemsize) for r, t in types]
        for step in steps:
            made = zip(step.writes, step.writes_each, strict=True)
            sizes += [(r, space, numel(s) * dtype.itemsize) for r, (s, dtype, space) in made if r not in kept]
        return tuple(tape.Inside(r, space, nbytes, slot) for slot, (r, space, nbytes) in enumerate(sizes))

    def _limit(self, i: int) -> StepLimit | None:
        return self._needs.steps.get(i)

    def _run_kernel(self, i: int) -> None:
        kernel = self._kernels[i]
        self._steps.append(tape.RunKernel(i, *self._given_to(kernel), kernel.writes))
        self._wrote(kernel.writes)
        if self._contract.verify:
            given = dict.fromkeys((*kernel.reads, *self._demands.indices_of(i)))
            ends = () if kernel.plan.region.map is None else (map_type(self._program, kernel.plan.region.map),)
            rows = self._rows_of(tuple(dict.fromkeys((*kernel.spaces, *(s for m in ends for s in (m.dom, m.cod))))))
            self._steps.append(tape.Check(i, rows, tuple(given), kernel.writes))

    def _given_to(
        self, kernel: RegionStep, late: Iterable[ir.Ref] = ()
    ) -> tuple[tuple[Space, ...], tuple[ir.Ref, ...], tuple[ir.Ref, ...]]:
        """The rows, the indices and the values that a kernel reads. Of values that are `late`, it reads the rows that
        are there."""
        indices = tuple(map(self._index_of, kernel.maps))
        reads = tuple(r if r in late else self._value(r) for r in kernel.reads)
        return self._rows_of(kernel.spaces), indices, reads

    def _wrote(self, writes: Sequence[ir.Ref]) -> None:
        self._there.update((r, r) for r in writes)
        self._written.update(writes)
        self._steps += map(tape.Narrow, self._narrow.intersection(writes))

    def _index_of(self, m: ir.Ref) -> ir.Ref:
        node = self._program.nodes[m]
        assert isinstance(node, ir.MapOf)
        return self._value(node.index)

    def _rows_of(self, spaces: Sequence[Space]) -> tuple[Space, ...]:
        """`spaces`, whose rows are counted by then."""
        for space in spaces:
            if space not in self._counted:
                number = self._counts.number(space) if self._traits.counts else None
                if number is None:
                    self._asked.append(space)
                else:
                    self._steps.append(tape.Count(space, number))
                self._counted.add(space)
        return tuple(spaces)

    # -------------------------------------------------------- nodes without a kernel

    def _value(self, ref: ir.Ref) -> ir.Ref:
        value = self._ensure(ref)
        assert value is not None, f"%{ref} is no value"
        return value

    def _ensure(self, ref: ir.Ref) -> Given:
        """`ref`, which is there by then, or None if it is no value. It is computed here if nothing has computed it
        yet."""
        if ref in self._there:
            return self._there[ref]
        if (kernel := self._writers.get(ref)) is not None:  # what counts rows may need it before its turn
            self._step(kernel)
            if ref in self._awaited:
                self._run_waiting()
            if ref in self._there:
                return ref
        node = self._program.nodes[ref]
        match node:
            case ir.ToUnit():
                return None
            case ir.Exchange() | ir.ExchangeBack() if travels(node):
                self._begin(ref, node)
                self._steps.append(tape.Wait(ref))
            case ir.Own(x, order):  # a tensor of which results are views
                self._steps.append(tape.OwnMemory(ref, self._value(x), Promise(order)))
            case _:
                self._call(ref)
        self._there[ref] = ref
        if ref in self._narrow:
            self._steps.append(tape.Narrow(ref))
        if self._is_prelude:
            for size in self._sizes_of[ref]:  # read at once, so that the tensor may be freed
                self._ensure(size)
        return ref

    def _call(self, ref: ir.Ref) -> None:
        given = tuple(self._ensure(r) for r in dict.fromkeys(call_operands(self._program, ref)))
        rows = self._rows_of(self._traits.spaces_of_call(ref))
        is_work = ref in self._refused and not isinstance(self._program.nodes[ref], ir.Aten)
        self._steps.append(tape.CallNode(ref, rows, given, is_work or self._plan.is_left(ref)))

    # -------------------------------------------------------- between ranks

    def _begin(self, ref: ir.Ref, node: ir.Exchange | ir.ExchangeBack) -> None:
        """Begin to move rows between ranks, unless they do. `_ensure` waits for them before the first step that needs
        them."""
        if ref in self._there or ref in self._begun:
            return
        source = self._value(node.x)
        has_room = node.x in self._travel.sent if isinstance(node, ir.Exchange) else self._travel.back(node.x)
        self._steps.append(tape.Begin(ref, source, node.x in self._written and bool(has_room)))
        self._begun.add(ref)

    def _in_two(self, i: int) -> TwoParts | None:
        """How kernel i runs in two parts, if one of them needs no row that is on its way, or gives rows to send."""
        step, region = self._kernels[i], self._plan.schedule.steps[i]
        if not isinstance(step, CppStep) or not isinstance(region, Region) or self._limit(i) is not None:
            return None
        late = [r for r in step.reads if self._is_late(r)]
        if self._needs_late((*(r for r in step.reads if r not in late), *self._demands.indices_of(i))):
            return None
        return self._travel.in_two(step, region, late)

    def _run_parts(self, i: int, parts: TwoParts) -> None:
        """Add the first part of a kernel, what begins to travel then or is waited for, and the second part."""
        kernel, late = self._kernels[i], {one.value for one in parts.late}
        self._steps.append(
            tape.FirstPart(
                i, *self._given_to(kernel, late), kernel.writes, parts.late, self._rooms(kernel.writes), parts.back
            )
        )
        self._wrote(kernel.writes)
        for back in filter(None, map(self._travel.back, kernel.writes)):
            self._begin(*back)
        for r in sorted(late):
            self._ensure(r)
        self._steps.append(tape.SecondPart(i))

    def _rooms(self, writes: Iterable[ir.Ref]) -> tuple[tape.Room, ...]:
        return tuple(tape.Room(r, self._travel.sent[r]) for r in writes if r in self._travel.sent)

    def _is_late(self, ref: ir.Ref) -> bool:
        """Whether the value is on its way."""
        return ref in self._begun and ref not in self._there

    def _waits(self, i: int) -> bool:
        """Whether kernel i needs rows that are still on their way."""
        return self._needs_late((*self._kernels[i].reads, *self._demands.indices_of(i)))

    def _needs_late(self, refs: Iterable[ir.Ref]) -> bool:
        return any(map(self._is_late, ancestors(self._program, refs, frozenset(self._there))))

    # -------------------------------------------------------- results

    def _settle(self) -> tuple[tape.Output, ...]:
        """Bring each result into the memory that is promised of it, and return the results."""
        promises, written, add = self._contract.promises, self._written, self._steps.append
        promised = {
            i: (r, p) for i, (r, p) in enumerate(zip(self._outputs, promises, strict=False))
            if r is not None and p is not None and not self._keeps(r, p)
        }  # fmt: skip
        owned = any(p.own for _, p in promised.values())
        # the memo also gives them to others
        held = {r for r in self._plan.hoisted if is_tensor(self._program, r) and not is_integral(self._program, r)}
        if owned and held & {r for r, _ in promised.values()}:
            add(tape.Taken(tuple(sorted(held))))
        results = self._outputs[: len(promises)]
        as_they_are = [r for i, r in enumerate(results) if r in written and i not in promised]
        if owned and as_they_are:  # the others may be views of these
            add(tape.Taken(tuple(r for r in as_they_are if r is not None)))
        if any(p.fresh for _, p in promised.values()):
            add(tape.Saved(tuple(r for r in self._outputs[len(promises) :] if r is not None)))
        for i, (r, p) in promised.items():
            add(tape.Settle(i, r, p))
        # What is kept for the graph is lent to users. Values that are saved for the backward alone are not theirs.
        lent = self._once - self._contract.private
        if promises:
            lent = lent.intersection(results)
        return tuple(tape.Output(None if r is None else self._ensure(r), r in lent) for r in self._outputs)

    def _keeps(self, ref: ir.Ref, promise: Promise) -> bool:
        """Whether a result keeps its promise wherever the program runs: its memory is its own, in row-major order, and
        if it must be `fresh`, no other result and nothing that is kept for the backward can be a view of it. A row of
        what kernels write will do where memory may be shared."""
        is_there = ref in self._written or self._is_number(ref) or (not promise.own and self._is_written_row(ref))
        if not (promise.row_major and is_there):
            return False
        results = self._outputs[: len(self._contract.promises)]
        return not promise.fresh or (results.count(ref) == 1 and ref not in self._maybe_saved)

    @cached_property
    def _maybe_saved(self) -> set[ir.Ref]:
        """Values that are kept for the backward, and those from which calls of PyTorch make them: they may be views of
        these."""
        saved = (r for r in self._outputs[len(self._contract.promises) :] if r is not None)
        return ancestors(self._program, saved, frozenset(self._written))

    def _is_written_row(self, ref: ir.Ref) -> bool:
        node = self._program.nodes[ref]
        return isinstance(node, ir.Part) and node.of[node.at] == UNIT and node.x in self._written

    def _is_number(self, ref: ir.Ref) -> bool:
        """Whether the value is a tensor without dims that a PyTorch call computes, and so has its own memory."""
        t = self._program.types[ref]
        return (
            isinstance(self._program.nodes[ref], ir.Pointwise)
            and isinstance(t, ir.Type)
            and (t.space, t.shape) == (UNIT, ())
        )


def _is_size(node: ir.Node) -> bool:
    return isinstance(node, ir.Aten) and node.target == named.SIZE
