"""A trace of JAX's (a jaxpr) -> message program.

Arguments are rows of sources, destinations or edges, or data that all rows share; the importer follows rows through the
trace (`values.py`). What a message program cannot say is an error that names JAX's primitive and the user's line.
"""

from __future__ import annotations

import linecache
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from jax.extend.core import Literal as JaxLiteral
from torch import Tensor

from graphweave.core.errors import DataError, IRError
from graphweave.core.lines import NOWHERE, Location, is_library
from graphweave.core.types import UNIT, DType, Fold, Space
from graphweave.ir.message import nodes as ir
from graphweave.ir.message.builder import Builder
from graphweave.ir.message.verify import verify
from graphweave.jax.elementwise import ELEMENTWISE, dtype_of
from graphweave.jax.moves import End, Types
from graphweave.jax.products import dot_general
from graphweave.jax.shapes import SEVERAL, SHAPES, shared_row
from graphweave.jax.values import CannotSay, Value, Values


@dataclass(frozen=True, slots=True)
class IndexOf:
    """The rows of an argument that is the index of the map `end`: a number for each edge."""

    end: End


Rows: TypeAlias = str | Types | IndexOf
"""The rows that dim 0 of an argument or result counts: those of a space of the graph, by its name in `GraphSpaces`, or
types of edges; "unit" means data without rows."""

_CALLS = ("jaxpr", "call_jaxpr", "fun_jaxpr")
"""Parameters that hold the body of a primitive that is a call."""

_INLINED = frozenset({
    "jit", "pjit", "closed_call", "core_call", "remat", "remat2", "checkpoint", "custom_jvp_call", "custom_vjp_call",
    "custom_vjp_call_jaxpr", "custom_lin",
})  # fmt: skip
"""Primitives whose meaning is that of their body."""


@dataclass(frozen=True, slots=True)
class EdgeMap:
    """From each row of the space `edges` to a row of the space `nodes`, by an index of this element type."""

    edges: Space
    nodes: Space
    index: DType


@dataclass(frozen=True, slots=True)
class GraphSpaces:
    """The spaces of a graph, how many rows each has, and the maps between them. The index of a map is the input of its
    name."""

    spaces: Mapping[Rows, Space]
    rows: Mapping[Space, int]
    maps: Mapping[End, EdgeMap]

    def of(self, rows: Rows, numbered: dict[Types, int]) -> Space:
        """The space of `rows`. Types that `numbered` does not know get the next number there."""
        if isinstance(rows, IndexOf):
            return self.maps[rows.end].edges
        if isinstance(rows, Types):
            return Space(f"types{numbered.setdefault(rows, len(numbered))}")
        return self.spaces[rows]


@dataclass(frozen=True, slots=True)
class Result:
    """An output of a program as an array: its tensor reshaped to `made`, then repeated up to `shape`."""

    made: tuple[int, ...]
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ImportedTrace:
    """`program` takes the arguments that `arguments` numbers, as inputs of these names, `constants`, the indices of the
    graph, and `types`, further index tensors.

    Its outputs become arrays by `results`.
    """

    program: ir.Program
    rows: tuple[tuple[Space, int], ...]
    arguments: Mapping[str, int]
    constants: Mapping[str, np.ndarray[Any, Any]]
    types: Mapping[str, Tensor]
    results: tuple[Result, ...]


def import_jaxpr(
    jaxpr: Any,
    arguments: Sequence[Rows],
    results: Sequence[Rows],
    frame: GraphSpaces,
    *,
    what: str,
    row_wise: bool = False,
) -> ImportedTrace:
    """The program of a jaxpr without constants. A DataError names the argument `what` and what a program cannot
    express.

    With `row_wise`, sums over rows are refused: no row of a result may depend on other rows.
    """
    return _TraceImporter(frame, what, row_wise).run(jaxpr, arguments, results)


class _TraceImporter:
    def __init__(self, frame: GraphSpaces, what: str, row_wise: bool) -> None:
        self._frame, self._what = frame, what
        self._values = Values(Builder(), row_wise)
        self._arguments: dict[str, int] = {}
        self._constants: dict[str, np.ndarray[Any, Any]] = {}
        self._types: dict[Types, int] = {}

    def run(self, jaxpr: Any, arguments: Sequence[Rows], results: Sequence[Rows]) -> ImportedTrace:
        env: dict[Any, Value] = {}
        needed = needed_by(jaxpr)
        for i, (var, rows) in enumerate(zip(jaxpr.invars, arguments, strict=True)):
            if isinstance(rows, IndexOf):
                self._arguments[rows.end] = i
                env[var] = Value(self._index(rows.end), tuple(map(int, var.aval.shape)), 0)
            elif var in needed or var in jaxpr.outvars:
                env[var] = self._argument(i, var.aval, rows)
        self._body(jaxpr, env, needed)
        outputs, made = [], []
        for var, rows in zip(jaxpr.outvars, results, strict=True):
            try:
                ref, result = self._result(self._read(env, var), rows)
            except (CannotSay, IRError) as error:
                raise DataError(f"{self._what}: what it returns {error}. Return one row for each edge.") from None
            outputs.append(ref)
            made.append(result)
        rows_of = (*self._frame.rows.items(), *((self._space(types), types.count) for types in self._types))
        program = self._values.build.program(outputs, rows_of)
        verify(program)
        indices = {f"types{i}": types.index for types, i in self._types.items() if types.index is not None}
        return ImportedTrace(program, rows_of, self._arguments, self._constants, indices, tuple(made))

    def _space(self, rows: Rows) -> Space:
        return self._frame.of(rows, self._types)

    # ---------------------------------------------------------------- leaves

    def _argument(self, i: int, aval: Any, rows: Rows) -> Value:
        name = f"x{i}"
        self._arguments[name] = i
        shape = tuple(map(int, aval.shape))
        space = UNIT if rows == "unit" else self._space(rows)
        try:
            t = ir.Type(space, shape if space == UNIT else shape[1:], dtype_of(aval.dtype))
        except CannotSay as error:
            raise DataError(f"{self._what}: an argument of it {error}. Convert it with .astype(...).") from None
        return Value(self._values.add(ir.Input(name, t)), shape, None if space == UNIT else 0)

    def _array(self, array: np.ndarray[Any, Any], shape: tuple[int, ...] | None = None) -> Value:
        """A constant array, repeated up to `shape`."""
        dtype = dtype_of(array.dtype)
        if array.size == 1:
            ref = self._values.const(array.reshape(()).item(), dtype)
            ref = self._values.reshaped(ref, array.shape)
        else:
            name = f"c{len(self._constants)}"
            self._constants[name] = array
            ref = self._values.add(ir.Input(name, ir.Type(UNIT, array.shape, dtype)))
        shape = array.shape if shape is None else shape
        return Value(ref, shape, None, frozenset(i for i, n in enumerate(array.shape) if n == 1))

    def _map(self, end: End) -> ir.Ref:
        return self._values.add(ir.MapOf(self._index(end), self._frame.maps[end].nodes))

    def _index(self, end: End) -> ir.Ref:
        found = self._frame.maps[end]
        return self._values.add(ir.Input(end, ir.Type(found.edges, (), found.index)))

    def _map_to_types(self, types: Types, traced: Sequence[Value]) -> ir.Ref:
        to = self._space(types)
        if types.index is None:
            return self._values.add(ir.MapOf(traced[0].ref, to))
        dtype = dtype_of(str(types.index.dtype).removeprefix("torch."))
        index = ir.Input(f"types{self._types[types]}", ir.Type(self._frame.spaces[types.rows], (), dtype))
        return self._values.add(ir.MapOf(self._values.add(index), to))

    # ---------------------------------------------------------------- equations

    def _body(self, jaxpr: Any, env: dict[Any, Value], needed: set[Any] | None = None) -> None:
        for eqn in jaxpr.eqns:
            if needed is not None and needed.isdisjoint(eqn.outvars):
                continue
            line = line_of(eqn)
            self._values.loc = line or self._values.loc
            args = [self._read(env, v) for v in eqn.invars]
            try:
                found = self._equation(eqn, args)
            except (CannotSay, IRError) as error:
                shared = [shared_row(self._values, v) for v in args]
                if shared == args:
                    raise self._refused(eqn, str(error)) from None
                found = self._of_one_row(eqn, shared, error)
            for var, value in zip(eqn.outvars, found, strict=True):
                env[var] = value

    def _of_one_row(self, eqn: Any, shared: list[Value], refusal: Exception) -> Sequence[Value]:
        """The results of an equation that is refused, `refusal`, of operands of one row, from `shared`, that row as
        shared data."""
        try:
            return self._equation(eqn, shared)
        except (CannotSay, IRError):
            raise self._refused(eqn, str(refusal)) from None

    def _equation(self, eqn: Any, args: list[Value]) -> Sequence[Value]:
        name, params, values = eqn.primitive.name, eqn.params, self._values
        if name in ELEMENTWISE:
            if len(eqn.outvars) > 1:  # a barrier
                return args
            return [ELEMENTWISE[name](values, *args, **params)]
        if name in SHAPES:
            return [SHAPES[name](values, *args, **params)]
        if name in SEVERAL:
            return SEVERAL[name](values, *args, **params)
        match name:
            case "dot_general":
                return [dot_general(values, *args, **params)]
            case "graphweave_pull":
                return [self._pull(args[0], **params)]
            case "graphweave_push":
                return [self._push(args[0], Fold.sum, **params)]
            case "graphweave_fold":
                return [self._push(args[0], **params)]
            case "graphweave_lookup":
                return [self._lookup(*args, **params)]
            case "graphweave_collect":
                return [self._collect(*args, **params)]
            case "iota":
                return [self._iota(**params)]
        if name in _INLINED:
            body = next((params[key] for key in _CALLS if key in params), None)
            if body is not None:
                return self._inlined(body, args)
        raise CannotSay("has no meaning for one row of an edge, or none that kernels compute")

    def _inlined(self, body: Any, args: Sequence[Value]) -> list[Value]:
        jaxpr, consts = (body.jaxpr, body.consts) if hasattr(body, "consts") else (body, ())
        env = dict(zip(jaxpr.constvars, (self._array(np.asarray(c)) for c in consts), strict=True))
        env.update(zip(jaxpr.invars, args, strict=True))
        loc = self._values.loc
        self._body(jaxpr, env)
        self._values.loc = loc
        return [self._read(env, v) for v in jaxpr.outvars]

    def _pull(self, x: Value, *, end: End, edges: int) -> Value:
        shape = (edges, *x.shape[1:])
        if x.rows is None and x.is_uniform(0):
            return Value(x.ref, shape, None, x.spread | {0})
        ref = self._values.on(x, self._frame.maps[end].nodes)
        return Value(self._values.add(ir.Pull(ref, self._map(end))), shape, 0, x.spread)

    def _push(self, x: Value, fold: Fold, *, end: End, rows: int) -> Value:
        ref = self._values.on(x, self._frame.maps[end].edges)
        pushed = ir.Push(ref, self._map(end), fold, int(fold is Fold.mul))
        return Value(self._values.add(pushed), (rows, *x.shape[1:]), 0, x.spread - {0})

    def _lookup(self, x: Value, *index: Value, types: Types) -> Value:
        ref = self._values.on(x, self._space(types))
        pulled = self._values.add(ir.Pull(ref, self._map_to_types(types, index)))
        return Value(pulled, (types.size, *x.shape[1:]), 0, x.spread - {0})

    def _collect(self, x: Value, *index: Value, types: Types) -> Value:
        rows = self._frame.spaces[types.rows] if types.index is not None else self._values.space(index[0])
        ref = self._values.on(x, rows)
        pushed = self._values.add(ir.Push(ref, self._map_to_types(types, index), Fold.sum))
        return Value(pushed, (types.count, *x.shape[1:]), 0, x.spread - {0})

    def _iota(self, *, dtype: Any, shape: Sequence[int], dimension: int, **params: Any) -> Value:
        own = [1] * len(shape)
        own[dimension] = int(shape[dimension])
        return self._array(np.arange(shape[dimension], dtype=dtype).reshape(own), tuple(map(int, shape)))

    # ---------------------------------------------------------------- results

    def _read(self, env: Mapping[Any, Value], var: Any) -> Value:
        if isinstance(var, JaxLiteral):
            return self._array(np.asarray(var.val).astype(var.aval.dtype))
        return env[var]

    def _result(self, v: Value, rows: Rows) -> tuple[ir.Ref, Result]:
        values = self._values
        if rows == "unit" or v.rows != 0 or values.space(v) != self._space(rows):
            v = shared_row(values, v)
        if rows == "unit" and v.rows is not None:
            raise CannotSay("has a row for each edge or node where all share one")
        elif rows != "unit" and v.rows not in (None, 0):
            raise CannotSay("has its rows in another dim than the first")
        elif rows != "unit" and v.rows is None and not v.is_uniform(0):
            raise CannotSay("does not follow the rows of the arguments")
        elif rows != "unit" and v.rows == 0 and values.space(v) != self._space(rows):
            raise CannotSay(f"has rows of {values.space(v)}")
        made = list(values.type(v.ref).shape)
        if v.rows is not None:
            made.insert(v.rows, v.shape[v.rows])
        return v.ref, Result(tuple(made), v.shape)

    def _refused(self, eqn: Any, why: str) -> DataError:
        at = line_of(eqn)
        return DataError(
            f"{self._what}: {eqn.primitive.name} {why}{f' ({at})' if at else ''}."
            " Compute it outside, and pass the result as src, dst or edge."
        )


def needed_by(jaxpr: Any) -> set[Any]:
    """The variables that the results of `jaxpr` need."""
    needed = {v for v in jaxpr.outvars if not isinstance(v, JaxLiteral)}
    for eqn in reversed(jaxpr.eqns):
        if not needed.isdisjoint(eqn.outvars):
            needed.update(v for v in eqn.invars if not isinstance(v, JaxLiteral))
    return needed


def line_of(eqn: Any) -> Location:
    """The user's line that made an equation; `NOWHERE` if there is none."""
    for frame in getattr(eqn.source_info.traceback, "frames", None) or ():
        if not is_library(frame.file_name):
            code = linecache.getline(frame.file_name, frame.line_num).strip()
            return Location(frame.file_name, frame.line_num, code)
    return NOWHERE
