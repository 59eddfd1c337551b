"""Plan -> the text of a Python function, which counts rows, runs the steps in order and frees values after their last
use."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor

from graphweave.analysis.flow import ancestors, has_effects, is_integral, with_viewed
from graphweave.analysis.typed import call_operands
from graphweave.compiler.contract import ANYHOW, Contract
from graphweave.compiler.plan import Plan
from graphweave.core.counters import bump
from graphweave.core.errors import IRError
from graphweave.core.ranks import LinkName, begun, begun_back
from graphweave.core.sizes import Size, Symbol, as_python, leaves, show
from graphweave.core.types import UNIT, Space
from graphweave.execute.calls import call_step
from graphweave.execute.cpp_step import CppStep
from graphweave.execute.cpp_stretch import CppStretch, turned
from graphweave.execute.cpp_two_parts import CppTwoParts
from graphweave.execute.demands import Demands
from graphweave.execute.last_uses import with_dels
from graphweave.execute.region_check import check_step
from graphweave.execute.region_step import RegionStep
from graphweave.execute.row_needs import UNLIMITED, RowNeeds
from graphweave.execute.travel import Travel
from graphweave.ir.message import nodes as ir
from graphweave.ir.message.builder import operands
from graphweave.ir.message.layouts import Promise, memory_of, settled
from graphweave.ir.message.nodes import Ref
from graphweave.lower.schedule import Region
from graphweave.runtime.agreed import AgreedMemo
from graphweave.runtime.formats import narrowed
from graphweave.runtime.memo import GivenOut, lent, memo
from graphweave.runtime.unseen_edits import Watch


class Wrapper:
    """`text` defines `run(args)`, which takes the values of the program's inputs in order. `load` makes it a function.

    `prelude` are the kernels of the plan's prelude, and the `contract` says what calls return and look at. With `asks`,
    `run` takes the row counts that the program's own values do not tell as further arguments: those of the spaces in
    `asked`. Indices in `asks` are held in 32 bits if they fit, and so are indices of the prelude that only maps read;
    an output may be among these if it is private. Stretches compute the rows that `needs` says.
    """

    def __init__(
        self, plan: Plan, kernels: Mapping[int, RegionStep], contract: Contract = ANYHOW, *,
        prelude: Mapping[int, RegionStep] | None = None, asks: frozenset[Ref] | None = None,
        needs: RowNeeds = UNLIMITED,
    ) -> None:  # fmt: skip
        self._plan, self._program, self._contract = plan, plan.program, contract
        self._row_needs = needs
        self._promises = promises = contract.promises
        self._written: set[Ref] = set()  # values that kernels write
        self._asks, self._narrow = asks is not None, asks or frozenset()
        self.asked: list[Space] = []
        self._kernels, self._demands = kernels, Demands(plan, kernels)
        self._outputs = plan.program.outputs[: contract.num_outputs]
        self._scope: dict[str, Any] = {"lent": lent, "bump": bump, "narrowed": narrowed}
        self._scope |= {"settled": settled, "memory_of": memory_of}
        self._lines: list[tuple[str, tuple[Ref, ...]]] = []  # the text of each line, and the values that it reads
        self._ready: dict[Ref, str] = {}
        self._begun: set[Ref] = set()  # rows that travel between ranks, or have come
        self._travel = Travel(plan, self._outputs, self._outputs[: len(promises)] if promises else self._outputs)
        self._rows: dict[Space, str] = {UNIT: "1"}
        self._fallbacks = 0
        self._sizes_of = [[u for u in us if _is_size(plan.program.nodes[u])] for us in plan.facts.flow.users]
        inputs = self._bind_inputs()
        self._given_out = with_viewed(plan.program, contract.watches or ())
        if contract.watches is not None:
            nodes = plan.program.nodes
            indices = {n.index for n in nodes if isinstance(n, ir.MapOf)}
            self._watch(r for r in inputs if r in indices or r in plan.prelude_inputs)
        self._prelude(prelude or {})
        self._steps()
        results = self._settle()
        self.text = self._text(inputs, results)

    def load(self, filename: str) -> Callable[[list[Any]], list[Any]]:
        """The function `run`. `filename` is the name of its file in tracebacks."""
        exec(compile(self.text, filename, "exec"), self._scope)
        run: Callable[[list[Any]], list[Any]] = self._scope["run"]
        return run

    # -------------------------------------------------------- steps

    def _bind_inputs(self) -> list[Ref]:
        """Give every input a name, and return the inputs that are arguments."""
        inputs = []
        for r, n in enumerate(self._program.nodes):
            if isinstance(n, ir.Input) and n.name in self._plan.constants:
                value, device = self._plan.constants[n.name], self._plan.options.device
                self._scope[f"constant{r}"] = value.to(device) if isinstance(value, Tensor) else value
                self._ready[r] = f"constant{r}"
            elif isinstance(n, ir.Input):
                inputs.append(r)
                self._ready[r] = f"v{r}"
        return inputs

    def _watch(self, values: Iterable[Ref]) -> None:
        """Look for unseen edits of the tensors among `values` before anything that was made from them is used."""
        for ref in values:
            if self._is_tensor(ref):
                self._scope[f"watch{ref}"] = Watch()
                self._line(f"watch{ref}({self._ready[ref]})", (ref,))

    def _is_tensor(self, ref: Ref) -> bool:
        t = self._program.types[ref]
        return isinstance(t, ir.Type) or (isinstance(t, ir.AnyType) and t.dims is not None)

    def _steps(self) -> None:
        steps, waiting = self._plan.schedule.steps, list[int]()
        for i, step in enumerate(steps):
            if waiting and not self._may_join(i, waiting) and not self._may_come_before(i, waiting):
                self._stretch(waiting)
                waiting = []
            node = self._program.nodes[step.ref] if not isinstance(step, Region) else None
            if isinstance(node, ir.ExchangeBack) or (isinstance(node, ir.Exchange) and not node.steady):
                assert not isinstance(step, Region)
                self._begin(step.ref, node)
            elif not isinstance(step, Region):
                if turned(self._program, step.ref) is None:  # the kernels that read it may transpose it themselves
                    self._ensure(step.ref)
            elif self._is_drivable(i) and (parts := self._two_parts(i)) is not None:
                if waiting:
                    self._stretch(waiting)
                    waiting = []
                self._in_two(i, parts)
            elif self._is_drivable(i):
                waiting.append(i)
            elif i in self._kernels:
                self._kernel(i, step)
            else:
                for ref in step.members:  # the region has no kernel
                    self._ensure(ref)
                    self._fallbacks += not isinstance(self._program.nodes[ref], ir.Aten)
        if waiting:
            self._stretch(waiting)
        for result in self._outputs:
            if result is not None:
                self._ensure(result)

    def _is_drivable(self, i: int) -> bool:
        return not self._contract.verify and i in self._kernels and self._kernels[i].drivable

    def _may_join(self, i: int, waiting: Sequence[int]) -> bool:
        """Whether kernel i may run in one call with the `waiting` ones: no call computes one of its inputs from their
        results."""
        if not self._is_drivable(i) or self._travels(i):
            return False
        written = {r for w in waiting for r in self._kernels[w].writes}
        computed = (r for r in self._kernels[i].reads if r not in written)
        return written.isdisjoint(self._demands.of((*computed, *self._demands.indices_of(i))))

    def _may_come_before(self, i: int, waiting: Sequence[int]) -> bool:
        """Whether step i is a call that has no effects and needs no result of the waiting kernels."""
        step = self._plan.schedule.steps[i]
        if isinstance(step, Region) or has_effects(self._program, step.ref):
            return False
        written = {r for w in waiting for r in self._kernels[w].writes}
        return written.isdisjoint(self._demands.of_step(i))

    def _stretch(self, members: Sequence[int]) -> None:
        """Write one call of kernels that follow one another."""
        kept = self._demands.of(self._outputs).union(self._narrow, self._demands.read_elsewhere(members))
        steps = {i: s for i in members if isinstance(s := self._kernels[i], CppStep)}
        for step in steps.values():
            step.sent = self._travel.of(step)
        limits = {at: self._row_needs.steps[i] for at, i in enumerate(steps) if i in self._row_needs.steps}
        stretch = CppStretch(self._program, list(steps.values()), kept, limits)
        if not stretch.writes:  # calls of PyTorch's computed in a way of their own what the kernels were for
            return
        indices = [self._index_of(m) for m in stretch.maps]
        reads = [self._ensure(r) for r in stretch.reads]
        rows = "".join(f"{self._rows_of(s)}, " for s in stretch.spaces)
        self._scope[f"s{members[0]}"] = stretch
        self._line(f"held = [{', '.join(reads)}]", stretch.reads)
        call = f"s{members[0]}(({rows}), ({''.join(f'{x}, ' for x in indices)}), held)"
        maps = (self._program.nodes[m] for m in stretch.maps)
        self._wrote(stretch.writes, call, {n.index for n in maps if isinstance(n, ir.MapOf)})

    def _wrote(self, writes: Sequence[Ref], call: str, reads: Iterable[Ref]) -> None:
        """Write the line of a call of kernels."""
        self._line(f"{''.join(f'v{r}, ' for r in writes)}= {call}", reads)
        self._ready.update((r, f"v{r}") for r in writes)
        for ref in self._narrow.intersection(writes):
            self._line(f"v{ref} = narrowed(v{ref})", (ref,))
        self._written.update(writes)

    def _prelude(self, kernels: Mapping[int, RegionStep]) -> None:
        plan, hoisted = self._plan.prelude, self._plan.hoisted
        if plan is None:
            return
        nested = Wrapper(plan, kernels, Contract(verify=self._contract.verify), asks=self._narrowed(plan))
        run = nested.load(f"<graphweave {self._plan.name} prelude>")
        self._scope["prelude"] = lambda *args: tuple(run(list(args))[: len(hoisted)])
        args = ", ".join([*(self._ready[r] for r in self._plan.prelude_inputs), *map(self._rows_of, nested.asked)])
        given = [i for i, r in enumerate(hoisted) if r in self._given_out and self._is_tensor(r)]
        kept = GivenOut(given) if given else memo.kept
        moves = (n for n in plan.program.nodes if isinstance(n, ir.Exchange | ir.ExchangeBack | ir.AllReduce))
        group = next((n.group if isinstance(n, ir.AllReduce) else n.link.group for n in moves), None)
        self._scope["memo"] = kept if group is None else AgreedMemo(group, kept)
        names = "".join(f"v{r}, " for r in hoisted)
        call = f"memo(prelude, {args})"
        self._line(f"{names}= {call}" if names else call, self._plan.prelude_inputs)
        self._ready.update((r, f"v{r}") for r in hoisted)
        self._ready.update((r, "None") for r in self._plan.facts.hoist.checks)

    def _narrowed(self, prelude: Plan) -> frozenset[Ref]:
        """Indices that the prelude makes and that only maps read, both in the prelude and here, as nodes of the
        prelude."""
        here = set(self._plan.facts.hoist.only_maps(self._plan.hoisted))
        here.difference_update(r for r in self._outputs if r is not None and r not in self._contract.private)
        pairs = zip(self._plan.hoisted, prelude.program.outputs, strict=False)  # the checks follow in `outputs`
        in_prelude = [new for old, new in pairs if old in here and new is not None]
        return frozenset(prelude.facts.hoist.only_maps(in_prelude))

    def _kernel(self, i: int, region: Region) -> None:
        kernel = self._kernels[i]
        self._scope[f"k{i}"] = kernel
        self._wrote(kernel.writes, f"k{i}({self._arguments(kernel)})", (*kernel.reads, *self._demands.indices_of(i)))
        if self._contract.verify:
            self._check(i, kernel, region)

    def _arguments(self, kernel: RegionStep, late: Collection[Ref] = ()) -> str:
        """The arguments of the call of a kernel. Of values that are `late`, it reads the rows that are there."""
        indices = [self._index_of(m) for m in kernel.maps]
        reads = [f"w{r}.rows" if r in late else self._ensure(r) for r in kernel.reads]
        rows = [self._rows_of(s) for s in kernel.spaces]
        return ", ".join(f"({''.join(f'{x}, ' for x in each)})" for each in (rows, indices, reads))

    def _check(self, i: int, kernel: RegionStep, region: Region) -> None:
        """Write the line that compares the kernel's outputs with the interpreter's on the same inputs."""
        given = list(
            dict.fromkeys([*kernel.reads, *(r for m in kernel.maps for r in operands(self._program.nodes[m]))])
        )
        self._scope[f"check{i}"] = check_step(self._program, kernel, region, given)
        spaces = ", ".join(f"{s.name!r}: {self._rows_of(s)}" for s in kernel.spaces)
        values = "".join(f"{self._ready[r]}, " for r in given)
        outs = "".join(f"v{r}, " for r in kernel.writes)
        self._line(f"check{i}({{{spaces}}}, ({values}), ({outs}))", (*given, *kernel.writes))

    def _begin(self, ref: Ref, node: ir.Exchange | ir.ExchangeBack) -> None:
        """Write the line that begins to move rows between ranks, unless it is written. `_ensure` writes the one that
        waits for them, before the first line that needs them."""
        if ref in self._ready or ref in self._begun:
            return
        values = self._ensure(node.x)
        self._scope |= {"begun": begun, "begun_back": begun_back, "LinkName": LinkName}
        if isinstance(node, ir.Exchange):
            slot = f", {node.slot}" if node.slot else ""
            in_place = ", in_place=True" if node.x in self._written and node.x in self._travel.sent else ""
            self._line(f"w{ref} = begun({values}, {node.link!r}{slot}{in_place})", (node.x,))
        else:
            in_place = ", in_place=True" if node.x in self._written and self._travel.back(node.x) else ""
            self._line(f"w{ref} = begun_back({values}, {node.fold.value!r}, {node.link!r}{in_place})", (node.x,))
        self._begun.add(ref)

    def _two_parts(self, i: int) -> CppTwoParts | None:
        """Kernel i in two parts, if one of them needs no row that is on its way, or gives rows to send."""
        step, region = self._kernels[i], self._plan.schedule.steps[i]
        if not isinstance(step, CppStep) or not isinstance(region, Region) or i in self._row_needs.steps:
            return None
        others = (*(r for r in step.reads if not self._is_late(r)), *self._demands.indices_of(i))
        if self._needs_late(others):
            return None
        return self._travel.in_two(step, region, [r for r in step.reads if self._is_late(r)])

    def _is_late(self, ref: Ref) -> bool:
        """Whether the value is on its way."""
        return ref in self._begun and ref not in self._ready

    def _in_two(self, i: int, parts: CppTwoParts) -> None:
        """Write the call of the first part of a kernel, what begins to travel then or is waited for, and the second
        part."""
        step = parts.step
        step.sent = self._travel.of(step)
        late = {r for r in step.reads if self._is_late(r)}
        self._scope[f"t{i}"] = parts
        call, there = f"t{i}({self._arguments(step, late)})", (r for r in step.reads if r not in late)
        values = "".join(f"v{r}, " for r in step.writes)
        self._line(f"{values}f{i} = {call}", (*there, *self._demands.indices_of(i)))
        self._ready.update((r, f"v{r}") for r in step.writes)
        self._written.update(step.writes)
        for back in filter(None, map(self._travel.back, step.writes)):
            self._begin(*back)
        for r in sorted(late):
            self._ensure(r)
        self._line(f"f{i}()", ())
        self._line(f"del f{i}", ())

    def _travels(self, i: int) -> bool:
        """Whether kernel i needs rows that are still on their way."""
        return self._needs_late((*self._kernels[i].reads, *self._demands.indices_of(i)))

    def _needs_late(self, refs: Iterable[Ref]) -> bool:
        return any(map(self._is_late, ancestors(self._program, refs, frozenset(self._ready))))

    def _ensure(self, ref: Ref) -> str:
        """The variable that holds `ref`. PyTorch computes it here if nothing has computed it yet."""
        if ref in self._ready:
            return self._ready[ref]
        node = self._program.nodes[ref]
        if isinstance(node, ir.ExchangeBack) or (isinstance(node, ir.Exchange) and not node.steady):
            self._begin(ref, node)
            self._line(f"v{ref} = w{ref}()", ())
            self._line(f"del w{ref}", ())
            self._ready[ref] = f"v{ref}"
            return self._ready[ref]
        if isinstance(node, ir.ToUnit):
            return "None"
        if isinstance(node, ir.Own):
            return self._own(ref, node)
        refs = tuple(dict.fromkeys(call_operands(self._program, ref)))
        values = [self._ensure(r) for r in refs]
        call = call_step(self._program, ref, self._plan.options)
        self._scope[f"c{ref}"] = call.run
        self._line(f"v{ref} = c{ref}({', '.join([*map(self._rows_of, call.spaces), *values])})", refs)
        self._fallbacks += self._plan.facts.flow.is_work(ref)
        self._ready[ref] = f"v{ref}"
        if ref in self._narrow:
            self._line(f"v{ref} = narrowed(v{ref})", (ref,))
        if self._asks:
            for size in self._sizes_of[ref]:  # read at once, so that the tensor may be freed
                self._ensure(size)
        return self._ready[ref]

    def _own(self, ref: Ref, node: ir.Own) -> str:
        """The variable that holds a tensor of which results are views. It shares memory with no argument."""
        name = self._ensure(node.x)
        self._scope[f"p{ref}"] = Promise(node.order)
        self._line(f"v{ref} = settled({name}, p{ref}, taken)", (node.x,))
        self._ready[ref] = f"v{ref}"
        return self._ready[ref]

    def _settle(self) -> list[str]:
        """Write lines that bring each result into the memory that is promised of it, and return the names of the
        results."""
        names = ["None" if r is None else self._ready[r] for r in self._outputs]
        promised = [
            i for i, (r, p) in enumerate(zip(self._outputs, self._promises, strict=False))
            if r is not None and p is not None and not (p.usual and (r in self._written or self._is_number(r)))
        ]  # fmt: skip
        # the memo also gives them to others
        held = {r for r in self._plan.hoisted if not is_integral(self._program, r)}
        if held & {self._outputs[i] for i in promised}:
            self._line(f"taken |= memory_of(({''.join(f'{self._ready[r]}, ' for r in sorted(held))}))", held)
        results = self._outputs[: len(self._promises)]
        as_they_are = [r for i, r in enumerate(results) if r in self._written and i not in promised]
        if promised and as_they_are:  # the others may be views of these
            self._line(f"taken |= memory_of(({''.join(f'{self._ready[r]}, ' for r in as_they_are)}))", as_they_are)
        kept = ""
        if any(p.fresh for i in promised if (p := self._promises[i]) is not None):
            kept = ", kept"
            saved = [r for r in self._outputs[len(self._promises) :] if r is not None]
            self._line(f"kept = memory_of(({''.join(f'{self._ready[r]}, ' for r in saved)}))", saved)
        for i in promised:
            self._scope[f"promise{i}"] = self._promises[i]
            own = isinstance(p := self._promises[i], Promise) and p.own
            self._line(f"r{i} = settled({names[i]}, promise{i}, {f'taken{kept}' if own else 'set()'})", ())
            names[i] = f"r{i}"
        # The memo keeps its results, so a caller gets other tensor objects, unless only our own code sees them.
        kept_by_memo = set(self._plan.hoisted) - self._contract.private
        return [f"lent({n})" if r in kept_by_memo else n for n, r in zip(names, self._outputs, strict=True)]

    def _is_number(self, ref: Ref) -> bool:
        """Whether the value is a tensor without dims that a PyTorch call computes, and so has its own memory."""
        t = self._program.types[ref]
        return (
            isinstance(self._program.nodes[ref], ir.Pointwise)
            and isinstance(t, ir.Type)
            and (t.space, t.shape) == (UNIT, ())
        )

    def _index_of(self, m: Ref) -> str:
        node = self._program.nodes[m]
        assert isinstance(node, ir.MapOf)
        return self._ensure(node.index)

    # -------------------------------------------------------- row counts

    def _rows_of(self, space: Space) -> str:
        if space not in self._rows:
            source, reads = self._count(space)
            self._line(f"n_{space.name} = {source}", reads)
            self._rows[space] = f"n_{space.name}"
        return self._rows[space]

    def _count(self, space: Space) -> tuple[str, tuple[Ref, ...]]:
        """An expression for the rows of `space` and the values that the expression reads. It uses a number, a tensor on
        the space that exists, or known sizes."""
        size = dict(self._program.spaces).get(space)
        if isinstance(size, int):
            return str(size), ()
        for ref, name in self._ready.items():
            t = self._program.types[ref]
            if isinstance(t, ir.Type) and t.space == space:
                return f"{name}.shape[0]", (ref,)
        known = self._sizes()
        parts = list(dict.fromkeys(leaves(size, known)))
        if size is not None and all(p in known for p in parts):
            reads = tuple(r for p in parts for r in known[p][1])
            return f"int({as_python(size, {p: known[p][0] for p in parts})})", reads
        return self._count_by_computing(space, size)

    def _count_by_computing(self, space: Space, size: Size | None) -> tuple[str, tuple[Ref, ...]]:
        """Compute a value on the space, or a symbol of the space's size, and count with that."""
        symbols = set(leaves(size))
        for ref, node in enumerate(self._program.nodes):
            t = self._program.types[ref]
            on_space = isinstance(t, ir.Type) and t.space == space and isinstance(node, ir.Opaque)
            is_size = isinstance(t, ir.AnyType) and t.size in symbols
            if (on_space or is_size) and ref not in self._ready and not self._needs_rows(ref, space):
                self._ensure(ref)
                return self._count(space)
            if isinstance(t, ir.PairsType) and t.pairs == space:
                return f"{self._ensure(ref)}.a.shape[0]", (ref,)
        if self._asks:
            self.asked.append(space)
            return f"rows{len(self.asked)}", ()
        raise IRError(f"no value tells how many rows {space} has ({'no expression' if size is None else show(size)})")

    def _needs_rows(self, ref: Ref, space: Space) -> bool:
        """Whether computing `ref` here takes the row count of `space`."""
        ready = frozenset(self._ready)
        inside = [r for r in ancestors(self._program, [ref], ready) - ready if self._is_tensor(r)]
        return any(space in call_step(self._program, r, self._plan.options).spaces for r in inside)

    def _sizes(self) -> dict[Size, tuple[str, tuple[Ref, ...]]]:
        """Symbols and numbers that are known at this line, each with an expression and the value that it reads.

        Only plain symbols are read from dims of tensors: for a compound size, tensors would have to live longer.
        """
        out: dict[Size, tuple[str, tuple[Ref, ...]]] = {}
        rows = dict(self._program.spaces)
        for ref, name in self._ready.items():
            t = self._program.types[ref]
            dims: tuple[Size | None, ...] = ()
            if isinstance(t, ir.Type):
                dims = (rows.get(t.space),)
            elif isinstance(t, ir.AnyType):
                dims = t.dims or ()
                if t.size is not None:
                    out.setdefault(t.size, (name, (ref,)))
            for d, size in enumerate(dims):
                if isinstance(size, Symbol):
                    out.setdefault(size, (f"{name}.shape[{d}]", (ref,)))
        return out

    # -------------------------------------------------------- text

    def _line(self, text: str, reads: Iterable[Ref]) -> None:
        self._lines.append((text, tuple(reads)))

    def _text(self, inputs: list[Ref], results: list[str]) -> str:
        """The text of `run`."""
        text = [f"# {self._plan.name}: {len(self._kernels)} kernels, {self._fallbacks} other calls", "def run(args):"]
        names = [*(f"v{r}" for r in inputs), *(f"rows{i}" for i, _ in enumerate(self.asked, start=1))]
        if any("taken" in line for line, _ in self._lines):
            constants = "".join(f"{name}, " for name in self._scope if name.startswith("constant"))
            text.append(f"    taken = memory_of((*args, {constants}))")
        if names:
            text.append(f"    {''.join(f'{name}, ' for name in names)}= args")
            text.append("    args.clear()")
        named = {r for r, name in self._ready.items() if name == f"v{r}"}
        text += [f"    {line}" for line in with_dels(self._lines, named.difference(self._outputs))]
        if self._fallbacks:
            text.append(f"    bump('fallback_calls', {self._fallbacks})")
        text.append(f"    return [{', '.join(results)}]")
        return "\n".join(text) + "\n"


def _is_size(node: ir.Node) -> bool:
    return isinstance(node, ir.Aten) and node.target == "aten.sym_size.int"
