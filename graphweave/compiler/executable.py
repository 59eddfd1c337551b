"""Plan -> one Python callable: straight-line text that counts rows, runs the steps in order and frees as it goes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from graphweave.analysis.flow import is_work
from graphweave.analysis.hoist import hoisted_checks
from graphweave.compiler.check import check_step
from graphweave.compiler.plan import Plan, kernel_prefix, lower_region
from graphweave.compiler.steps import KernelStep, call_step
from graphweave.core.counters import bump
from graphweave.core.errors import IRError
from graphweave.core.types import UNIT, DType, Space
from graphweave.ir.message.builder import operands
from graphweave.ir.message.nodes import AnyType, Aten, Input, MapOf, MapType, Program, Ref, ToUnit, Type
from graphweave.runtime.memo import memo
from graphweave.schedule.regions import Call, Region, Schedule


class Executable:
    """`executable(args)` with the values of the program's inputs in order; gives its outputs, None where None.

    `text` is the Python source of the call; with `verify` every region is compared with the interpreter at each call.
    """

    def __init__(self, plan: Plan, num_outputs: int | None = None, *, verify: bool = False) -> None:
        self.plan = plan
        self.kernels = {i: KernelStep(plan.program, k, _wide(plan, i)) for i, k in plan.kernels.items()}
        writing = _Writing(plan, self.kernels, num_outputs, verify)
        self.text, scope = writing.finish()
        code = compile(self.text, f"<graphweave {plan.name}>", "exec")
        exec(code, scope)
        self._run: Callable[[list[Any]], list[Any]] = scope["run"]

    def build(self, pool: ThreadPoolExecutor) -> list[Any]:
        """Start compiling every kernel; futures."""
        return [pool.submit(k.build) for k in self.kernels.values()]

    def __call__(self, args: list[Any]) -> list[Any]:
        """Takes the arguments out of `args`, so that each is freed after its last use."""
        return self._run(args)


def _wide(plan: Plan, i: int) -> Callable[[], Any]:
    """The same region for 64-bit indices, lowered when a graph first needs it."""
    region = plan.kernels[i].region
    return lambda: lower_region(
        plan.program, region, plan.schedule, f"{kernel_prefix(plan.name)}_{i}_wide", plan.options, DType.i64
    )


class _Writing:
    """With `asks`, row counts that the program's own values do not tell are arguments, `asked` of the caller."""

    def __init__(
        self, plan: Plan, kernels: dict[int, KernelStep], num_outputs: int | None, verify: bool, asks: bool = False
    ) -> None:
        self.plan, self.program, self.verify = plan, plan.program, verify
        self.asks = asks
        self.asked: list[Space] = []
        self.kernels = kernels
        self.outputs = plan.program.outputs[:num_outputs]
        self.scope: dict[str, Any] = {"memo": memo, "bump": bump}
        self.lines: list[tuple[str, tuple[Ref, ...]]] = []  # text, values it reads
        self.ready: dict[Ref, str] = {}
        self.rows: dict[Space, str] = {UNIT: "1"}
        self.fallbacks = 0

    def finish(self) -> tuple[str, dict[str, Any]]:
        inputs = []
        for r, n in enumerate(self.program.nodes):
            if isinstance(n, Input) and n.name in self.plan.constants:
                self.scope[f"constant{r}"] = self.plan.constants[n.name]
                self.ready[r] = f"constant{r}"
            elif isinstance(n, Input):
                inputs.append(r)
                self.ready[r] = f"v{r}"
        self._prelude()
        for i, step in enumerate(self.plan.schedule.steps):
            if not isinstance(step, Region):
                self._ensure(step.ref)
            elif i in self.kernels:
                self._kernel(i, step)
            else:
                for ref in step.members:
                    self._ensure(ref)
        for result in self.outputs:
            if result is not None:
                self._ensure(result)
        return self._text(inputs), self.scope

    # -------------------------------------------------------- steps

    def _prelude(self) -> None:
        prelude = self.plan.prelude
        if prelude is None:
            return
        name, calls = f"{self.plan.name}_prelude", _calls(prelude.program)
        plan = Plan(name, prelude.program, (), (), None, calls, {}, {}, self.plan.options, {})
        nested = _Writing(plan, {}, None, False, asks=True)
        text, scope = nested.finish()
        exec(compile(text, f"<graphweave {self.plan.name} prelude>", "exec"), scope)
        run = scope["run"]
        count = len(self.plan.hoisted)
        self.scope["prelude"] = lambda *args: tuple(run(list(args))[:count])
        args = ", ".join([*(self.ready[r] for r in self.plan.prelude_inputs), *map(self._rows_of, nested.asked)])
        names = "".join(f"v{r}, " for r in self.plan.hoisted)
        call = f"memo(prelude, {args})"
        self._line(f"{names}= {call}" if names else call, self.plan.prelude_inputs)
        self.ready.update((r, f"v{r}") for r in self.plan.hoisted)
        self.ready.update((r, "None") for r in hoisted_checks(self.program))

    def _kernel(self, i: int, region: Region) -> None:
        kernel = self.kernels[i]
        indices = [self._index_of(m) for m in kernel.maps]
        reads = [self._ensure(r) for r in kernel.reads]
        rows = "".join(f"{self._rows_of(s)}, " for s in kernel.spaces)
        self.scope[f"k{i}"] = kernel
        writes = "".join(f"v{r}, " for r in kernel.writes)
        call = f"k{i}(({rows}), ({''.join(f'{x}, ' for x in indices)}), ({''.join(f'{x}, ' for x in reads)}))"
        index_refs = [n.index for m in kernel.maps if isinstance(n := self.program.nodes[m], MapOf)]
        self._line(f"{writes}= {call}", (*kernel.reads, *index_refs))
        self.ready.update((r, f"v{r}") for r in kernel.writes)
        if self.verify:
            self._check(i, kernel, region)

    def _check(self, i: int, kernel: KernelStep, region: Region) -> None:
        """Compare the kernel's outputs with the interpreter's on the same inputs."""
        given = list(dict.fromkeys([*kernel.reads, *(r for m in kernel.maps for r in operands(self.program.nodes[m]))]))
        self.scope[f"check{i}"] = check_step(self.program, kernel, region, given)
        spaces = ", ".join(f"{s.name!r}: {self._rows_of(s)}" for s in kernel.spaces)
        values = "".join(f"{self.ready[r]}, " for r in given)
        outs = "".join(f"v{r}, " for r in kernel.writes)
        self._line(f"check{i}({{{spaces}}}, ({values}), ({outs}))", (*given, *kernel.writes))

    def _ensure(self, ref: Ref) -> str:
        """The variable that holds `ref`, computed by PyTorch if nothing has yet."""
        if ref in self.ready:
            return self.ready[ref]
        node = self.program.nodes[ref]
        if isinstance(node, ToUnit):
            return "None"
        refs = tuple(dict.fromkeys(operands(node)))
        args = "".join(f", {self._ensure(r)}" for r in refs)
        around = () if isinstance(node, Aten) else [s for s in self._spaces_around(ref) if s != UNIT]
        spaces = ", ".join(f"S_{s.name}: {self._rows_of(s)}" for s in around)
        self.scope.update((f"S_{s.name}", s) for s in self._spaces_around(ref))
        self.scope[f"c{ref}"] = call_step(self.program, ref)
        self._line(f"v{ref} = c{ref}({{{spaces}}}{args})", refs)
        self.fallbacks += is_work(self.program, ref)
        self.ready[ref] = f"v{ref}"
        return self.ready[ref]

    def _spaces_around(self, ref: Ref) -> list[Space]:
        """Spaces whose rows PyTorch may have to know to run the node."""
        out: dict[Space, None] = {}
        for r in (ref, *operands(self.program.nodes[ref])):
            t = self.program.types[r]
            if isinstance(t, Type):
                out[t.space] = None
            elif isinstance(t, MapType):
                out[t.dom] = out[t.cod] = None
        return list(out)

    def _index_of(self, m: Ref) -> str:
        node = self.program.nodes[m]
        assert isinstance(node, MapOf)
        return self._ensure(node.index)

    # -------------------------------------------------------- row counts

    def _rows_of(self, space: Space) -> str:
        if space not in self.rows:
            source, reads = self._count(space)
            self._line(f"n_{space.name} = {source}", reads)
            self.rows[space] = f"n_{space.name}"
        return self.rows[space]

    def _count(self, space: Space) -> tuple[str, tuple[Ref, ...]]:
        """How to count the rows of `space`: a number, a tensor on it that exists, or an expression in known sizes."""
        text = dict(self.program.spaces).get(space, "")
        if text.isdigit():
            return text, ()
        for ref, name in self.ready.items():
            t = self.program.types[ref]
            if isinstance(t, Type) and t.space == space:
                return f"{name}.shape[0]", (ref,)
        symbols = self._symbols()
        names = set(re.findall(r"\b[a-zA-Z_]\w*\b", text)) - {"Max", "Min"}
        if text and names <= symbols.keys():
            reads = tuple(r for n in names for r in symbols[n][1])
            expression = re.sub(r"\b([a-zA-Z_]\w*)\b", lambda m: _FUNCTIONS.get(m[1]) or symbols[m[1]][0], text)
            return f"int({expression})", reads
        return self._count_by_computing(space, text)

    def _count_by_computing(self, space: Space, text: str) -> tuple[str, tuple[Ref, ...]]:
        """Bring a value that lies on the space, or a size in the text, into being."""
        for ref, node in enumerate(self.program.nodes):
            t = self.program.types[ref]
            on_space = isinstance(t, Type) and t.space == space and isinstance(node, Aten)
            is_size = isinstance(t, AnyType) and t.text.startswith("Sym(") and t.text[4:-1] in re.findall(r"\w+", text)
            if (on_space or is_size) and ref not in self.ready:
                self._ensure(ref)
                return self._count(space)
        if self.asks:
            self.asked.append(space)
            return f"rows{len(self.asked)}", ()
        raise IRError(f"no value tells how many rows {space} has ({text or 'no expression'})")

    def _symbols(self) -> dict[str, tuple[str, tuple[Ref, ...]]]:
        """Symbols of sizes and where each can be read now."""
        out: dict[str, tuple[str, tuple[Ref, ...]]] = {}
        texts = dict(self.program.spaces)
        for ref, name in self.ready.items():
            t = self.program.types[ref]
            if isinstance(t, AnyType) and t.text.startswith("Sym("):
                out.setdefault(t.text[4:-1], (name, (ref,)))
            elif isinstance(t, AnyType) and "[" in t.text:
                for d, part in enumerate(t.text[t.text.index("[") + 1 : -1].split(", ")):
                    if part.isidentifier():
                        out.setdefault(part, (f"{name}.shape[{d}]", (ref,)))
            elif isinstance(t, Type) and texts.get(t.space, "").isidentifier():
                out.setdefault(texts[t.space], (f"{name}.shape[0]", (ref,)))
        return out

    # -------------------------------------------------------- text

    def _line(self, text: str, reads: Iterable[Ref]) -> None:
        self.lines.append((text, tuple(reads)))

    def _text(self, inputs: list[Ref]) -> str:
        """Lines with `del` after the last use of everything but the outputs, so that buffers return to the arena."""
        last: dict[Ref, int] = {}
        for i, (_, reads) in enumerate(self.lines):
            last.update((r, i) for r in reads)
        kept = {r for r in self.outputs if r is not None}
        text = [f"# {self.plan.name}: {len(self.kernels)} kernels, {self.fallbacks} other calls", "def run(args):"]
        names = [*(f"v{r}" for r in inputs), *(f"rows{i}" for i, _ in enumerate(self.asked, start=1))]
        if names:
            text.append(f"    {''.join(f'{name}, ' for name in names)}= args")
            text.append("    args.clear()")
        for i, (line, reads) in enumerate(self.lines):
            text.append(f"    {line}")
            ended = (r for r in dict.fromkeys(reads) if last[r] == i and r not in kept)
            dead = [f"v{r}" for r in ended if self.ready.get(r) == f"v{r}"]
            if dead:
                text.append(f"    del {', '.join(dead)}")
        if self.fallbacks:
            text.append(f"    bump('fallback_calls', {self.fallbacks})")
        text.append(f"    return [{', '.join('None' if r is None else self.ready[r] for r in self.outputs)}]")
        return "\n".join(text) + "\n"


_FUNCTIONS = {"Max": "max", "Min": "min"}


def _calls(program: Program) -> Schedule:
    wanted = [r for r in program.outputs if r is not None]
    return Schedule(tuple(Call(r) for r in wanted), frozenset(wanted))
