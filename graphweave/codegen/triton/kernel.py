"""A whole kernel as one Triton module.

    NAME(indptr of each CSR, buffers in order, order, groups, first, last, R, K, ORDERED, PRECISION)

The programs share the rows first .. last - 1. Each takes groups of R rows and walks the edges of all rows of a group, K
of each row at a time; lanes are the last dimension of every tensor. If ORDERED, `order` lists the rows in the order in
which they are grouped, so that rows of about equal degrees come together.
A kernel with totals has fewer programs than groups. Each program takes `groups` groups, one after the other, and stores
its sums as its row of [programs, elements]. The caller folds these rows in a fixed order, so results are repeatable.
A kernel whose rows are too large for one program has several consecutive ones for each group (`programs_of_a_row`).
Any R and K give right results (R * K >= 16 where edges are multiplied by matrices); the launcher chooses fast ones.
"""

from __future__ import annotations

from graphweave.codegen.sums import sums_of
from graphweave.codegen.triton.axes import ROWS, power_of_two
from graphweave.codegen.triton.names import triton_names
from graphweave.codegen.triton.parts import DOT, parts_of
from graphweave.codegen.triton.preamble import preamble
from graphweave.codegen.triton.scope import Held, Printed, TritonScope
from graphweave.codegen.triton.stmt import TritonPrinter, filled
from graphweave.codegen.walk import arrays_of, binders
from graphweave.codegen.writer import Writer
from graphweave.core.errors import IRError
from graphweave.ir.loop import nodes as loop
from graphweave.ir.loop.types import POSITION, identity, parameter_types
from graphweave.ir.loop.walk import csrs_around, statements

_HEAD = "import triton\nimport triton.language as tl\n"


def print_kernel(kernel: loop.Kernel) -> str:
    """The text of a Python module with the well-formed `kernel` in it; equal kernels give equal text.

    Raises:
        IRError: for what cannot be written in Triton: scratch over a row's edges, an online softmax, operators without
            a Triton form, registers indexed by values that are known only at run time.
    """
    unit = _TritonUnit(kernel)
    body = unit.function()  # printing it collects the helpers that it needs
    header = "".join(f"# {line}\n" for line in kernel.header)
    own = "".join(f"\n\n@triton.jit\n{text}" for _, text in unit.scope.own_folds.values())
    return f"{header}{_HEAD}{preamble(unit.scope.helpers)}{own}\n\n{body}"


def programs_of_a_row(kernel: loop.Kernel) -> int:
    """The number of programs that share the work of a row."""
    arrays = arrays_of(kernel)
    return parts_of(kernel, arrays, sums_of(kernel, arrays, rounded=True)).count


class _TritonUnit:
    def __init__(self, kernel: loop.Kernel) -> None:
        if kernel.stashes:
            raise IRError("a Triton kernel keeps nothing for each edge of a row: schedule it with stash_width=0.")
        if kernel.items is not None:
            raise IRError("a Triton kernel walks the rows of all items of a batch: schedule it with items=False.")
        self.kernel = kernel
        arrays = arrays_of(kernel)
        names = triton_names(
            [kernel.name, kernel.row, *arrays, *(csr.name for csr in kernel.csrs), *binders(kernel.body)]
        )
        self.w = Writer("    ", braces=False)
        self.scope = TritonScope(self.w, names, arrays, parameter_types(kernel))
        self.totals = [buffer for buffer in kernel.buffers if buffer.role is loop.Role.total]
        inner = list(statements(kernel.body))
        around = csrs_around(kernel)
        self.walked = [csr.name for csr in kernel.csrs if csr.name in around and around[csr.name] is None]
        self.sums = sums_of(kernel, arrays, rounded=True)
        self.scope.parts = self.parts = parts_of(kernel, arrays, self.sums)
        self.grams: dict[str, tuple[str, str]] = {}
        for s in inner:
            if isinstance(s, loop.TileGram) and s.out not in self.sums:
                if not isinstance(s.x, str) or not isinstance(s.y, str):
                    raise IRError("a Triton kernel cannot add a gram of gathered rows to a total.")
                self.grams[s.out] = s.x, s.y

    def function(self) -> str:
        w, kernel, names = self.w, self.kernel, self.scope.names
        w.line('@triton.jit(do_not_specialize=["groups", "first", "last"])')
        params = [names.derived(csr.name, "indptr") for csr in kernel.csrs]
        params += [names.of(buffer.name) for buffer in kernel.buffers]
        constants = [f"{name}: tl.constexpr" for name in ("R", "K", "ORDERED", "PRECISION")]
        with w.block(f"def {kernel.name}({', '.join([*params, 'order', 'groups', 'first', 'last', *constants])})"):
            w.line("program = tl.program_id(0).to(tl.int64)")
            if self.parts.count > 1:
                w.line(f"part = program % {self.parts.count}")
                w.line(f"program = program // {self.parts.count}")
            if not self.totals:
                w.line("group = program")
                self._group()
            else:
                for buffer in self.totals:
                    self._start(buffer)
                with w.block("for group in range(program * groups, (program + 1) * groups)"):
                    self._group()
                for buffer in self.totals:
                    self._finish(buffer)
        return w.text()

    def _group(self) -> None:
        """Prints all that is done for a group of R rows."""
        w, kernel, scope = self.w, self.kernel, self.scope
        scope.axes = (ROWS,)
        row = scope.bind(kernel.row, POSITION, Printed("", frozenset(["rows"]), ranked=True))
        w.line(f"{row} = first + group * R + tl.arange(0, R)")
        w.line(f"row_ok = {row} < last")
        with w.block("if ORDERED"):
            w.line(f"{row} = tl.load(order + {row}, mask=row_ok, other=0).to(tl.int64)")
        for csr in self.walked:
            indptr = scope.names.derived(csr, "indptr")
            begin, end = scope.names.derived(csr, "begin"), scope.names.derived(csr, "end")
            w.line(f"{begin} = tl.load({indptr} + {row}, mask=row_ok, other=0)")
            w.line(f"{end} = tl.load({indptr} + {row} + 1, mask=row_ok, other=0)")
            w.line(f"{scope.names.derived(csr, 'longest')} = tl.max({end} - {begin}, axis=0)")
        if kernel.sweep or kernel.within:
            raise IRError("Triton has no sweeps over tiles of features: leave tiles out of the schedule.")
        tile = None if kernel.tile is None else kernel.tile[0]
        TritonPrinter(scope, kernel.row, self.sums, frozenset(self.walked), tile).body(kernel.body)
        scope.axes = ()

    # ------------------------------------------------------------ totals

    def _start(self, buffer: loop.Buffer) -> None:
        scope = self.scope
        assert buffer.fold is not None
        info, dtype = scope.arrays[buffer.name], buffer.dtype
        name = scope.names.derived(buffer.name, "sum")
        if buffer.name in self.grams:
            rows, columns = (max(power_of_two(self.scope.arrays[x].numel), DOT) for x in self.grams[buffer.name])
            held = Held(name, dtype, (), info.numel, rows * columns, (rows, columns))
        else:
            held = Held(name, dtype, (), info.numel, 0 if info.numel == 1 else power_of_two(info.numel))
        scope.held[buffer.name] = held
        self.w.line(f"{name} = {filled(held, identity(buffer.fold, dtype).value)}")

    def _finish(self, buffer: loop.Buffer) -> None:
        scope, held = self.scope, self.scope.held[buffer.name]
        base = f"{scope.names.of(buffer.name)} + program * {held.numel}"
        if held.padded == 0:
            self.w.line(f"tl.store({base}, {held.name})")
        elif held.matrix is None:
            at = f"tl.arange(0, {held.padded})"
            mask = f", mask={at} < {held.numel}" if held.padded != held.numel else ""
            self.w.line(f"tl.store({base} + {at}, {held.name}{mask})")
        else:
            i, j = (self.scope.arrays[x].numel for x in self.grams[buffer.name])
            at_i, at_j = f"tl.arange(0, {held.matrix[0]})[:, None]", f"tl.arange(0, {held.matrix[1]})[None, :]"
            mask = f"({at_i} < {i}) & ({at_j} < {j})"
            self.w.line(f"tl.store({base} + {at_i} * {j} + {at_j}, {held.name}, mask={mask})")
