"""A program for a whole graph -> the program that each rank runs on its own rows.

    y = push(pull(x, src), dst)
->  y = push(pull(exchange(x), src'), dst)

    g = push(pull(y, dst), src)
->  g = exchange_back(push(pull(y, dst), src'))

A sharded space V on which rows of others are read has a twin: the rank's own rows, then its halo rows. The map `src'`
leads there. A pull along a map that leaves reads `Exchange(x)`, a push along it is a push to the twin, then the halo
rows are added to their owners' (`ExchangeBack`). What is pushed to shared data is pushed on each rank, then `AllReduce`
folds the ranks'. `analysis/ownership_rules.py` says which maps leave and which spaces are sharded, and refuses programs
whose numbers would not be those of the whole graph. Equal exchanges are one, since equal nodes are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias

from graphweave.analysis.cones import map_type, row_space
from graphweave.analysis.flow import ancestors
from graphweave.analysis.halo import HaloCosts, computed_with_halo
from graphweave.analysis.ownership import Numbers, Sharding, halo_of
from graphweave.analysis.ownership_rules import owned_rows
from graphweave.core.calls import named
from graphweave.core.errors import ShardError
from graphweave.core.lines import Location
from graphweave.core.numbers import Number, neutral, typed
from graphweave.core.sizes import Size, leaves, total
from graphweave.core.types import UNIT, DType, Fold, Op, OwnFold, Space
from graphweave.ir.message import nodes as ir
from graphweave.ir.message.builder import Builder, operands, with_operands
from graphweave.passes.pass_facts import NO_FACTS, PassFacts
from graphweave.passes.rewritten import Rewritten, unchanged
from graphweave.passes.substitute import substitute

_SEED_STEP = 0x9E3779B97F4A7C15 >> 1
"""Distance of the seeds of neighbouring ranks: an odd number near 2**63 / golden ratio."""

_ON_SIZES: dict[str, Op] = {"add": Op.add, "sub": Op.sub, "mul": Op.mul}
"""Functions of Python numbers that are computed from counts over all ranks."""

Folded: TypeAlias = ir.Push | ir.Gram


@dataclass(frozen=True, slots=True)
class Shard:
    """Rows that are received of steady inputs are kept."""

    name: str = "shard"

    def __call__(self, program: ir.Program, facts: PassFacts = NO_FACTS) -> Rewritten:
        """`program` for one of several ranks; the same object where there is one. Raises ShardError if its numbers
        would not be those of the whole graph."""
        if facts.sharding is None:
            return unchanged(program)
        made = _Sharded(program, facts.sharding, facts)
        outputs = [None if r is None else made.where[r] for r in program.outputs]
        keep = [made.where[r] for r in facts.keep]
        done = substitute(made.build, len(made.build.nodes), {}, outputs, keep, made.spaces())
        return replace(done, where={old: done.where[new] for old, new in made.where.items() if new in done.where})


class _Sharded:
    """The program in the making. `where` has each node, on the own rows of a rank if its space is sharded."""

    def __init__(self, program: ir.Program, sharding: Sharding, facts: PassFacts) -> None:
        owned = owned_rows(program, sharding)
        owned.check()
        self._program, self._sharding, self._owned, self._steady = program, sharding, owned, facts.steady
        flow = facts.of(program).flow
        late = flow.depending(facts.tangents_of(program))
        self._never_stale = late | flow.graph_only
        results = [r for r in program.outputs if r is not None and r not in late]
        self._forward = ancestors(program, [*results, *facts.keep]) if late else set(range(len(program.nodes)))
        self._may_be_stale = sharding.stale and bool(late)
        self._symbols = {s for space, n in program.spaces if space in owned.sharded for s in leaves(n)}
        self._halo = owned.halo
        self._computed = computed_with_halo(program, owned.halo, HaloCosts(sharding, facts.statistics, facts.steady))
        self._all: dict[ir.Ref, ir.Ref] = {}
        self.build = Builder()
        self.where: dict[ir.Ref, ir.Ref] = {}
        for ref, node in enumerate(program.nodes):
            if isinstance(node, ir.Input):
                self.where[ref] = self.build.add(node, program.locs[ref])
        for ref, node in enumerate(program.nodes):
            if ref in self.where:
                continue
            both = ref in self._computed and isinstance(node, ir.MatMul)
            self.where[ref] = self._own_rows(ref) if both else self._added(ref)

    def spaces(self) -> list[tuple[Space, Size | None]]:
        """The spaces of the program, and the twins with their row counts."""
        halo, rows = dict(self._sharding.halo), dict(self._program.spaces)
        out: list[tuple[Space, Size | None]] = list(self._program.spaces)
        for space, node_type in self._halo.node_types.items():
            size = rows.get(space)
            rows[self._twin(space)] = None if size is None else total(size, halo[node_type])
            out.append((self._twin(space), rows[self._twin(space)]))
            out.append((halo_of(space), halo[node_type]))
        for space, of in self._halo.unions.items():
            sizes = [1 if s == UNIT else rows.get(self._twin(s)) for s in of]
            counted = [n for n in sizes if n is not None]
            out.append((self._twin(space), total(*counted) if len(counted) == len(of) else None))
        return out

    # -------------------------------------------------------- own and halo rows

    def _twin(self, space: Space) -> Space:
        return self._halo.twin(space)

    def _with_halo(self, ref: ir.Ref) -> ir.Ref:
        """The value on its space's twin: own rows, then halo rows."""
        if ref not in self._all:
            node, t, loc = self._program.nodes[ref], self._program.types[ref], self._program.locs[ref]
            assert isinstance(t, ir.Type)
            twin = self._twin(t.space)
            match node:
                case _ if twin == t.space:
                    made = self.where[ref]
                case ir.Const():
                    made = self.build.add(replace(node, type=replace(t, space=twin)), loc)
                case ir.Pull(x, m) if isinstance(self._program.nodes[m], ir.ToUnit):
                    made = self.build.add(ir.Pull(self.where[x], self.build.add(ir.ToUnit(twin), loc)), loc)
                case ir.Join(xs) if tuple(row_space(self._program, x) for x in xs) == self._halo.unions.get(t.space):
                    made = self.build.add(ir.Join(tuple(map(self._with_halo, xs)), twin), loc)
                case _ if ref in self._computed:
                    made = self.build.add(with_operands(node, lambda r: self._beside(r, t.space)), loc)
                case _:
                    made = self._sent(ref, t.space)
            self._all[ref] = made
        return self._all[ref]

    def _sent(self, ref: ir.Ref, space: Space) -> ir.Ref:
        """The own rows of a value, and its halo rows as their owners send them."""
        node, loc = self._program.nodes[ref], self._program.locs[ref]
        steady = isinstance(node, ir.Input) and node.name in self._steady
        stale = self._may_be_stale and not steady and ref not in self._never_stale

        def exchange(own: ir.Ref, segment: Space, k: int) -> ir.Ref:
            link = self._sharding.link_to(self._halo.node_types[segment])
            slot = ref + 1 + k * len(self._program.nodes) if stale else 0
            return self.build.add(ir.Exchange(own, link, self._twin(segment), slot, steady), loc)

        return self._by_segment(self.where[ref], space, exchange, loc, sends=True)

    def _by_segment(
        self,
        whole: ir.Ref,
        space: Space,
        change: Callable[[ir.Ref, Space, int], ir.Ref],
        loc: Location,
        *,
        sends: bool = False,
    ) -> ir.Ref:
        """`change(rows, segment, number)` of each segment of `space` that has halo rows, the segments one after the
        other again. It makes own rows of own and halo rows, or with `sends` the other way round."""
        of = self._halo.unions.get(space)
        if of is None:
            return change(whole, space, 0) if space in self._halo.node_types else whole
        twins = tuple(map(self._twin, of))
        rows = [self.build.add(ir.Part(whole, of if sends else twins, k), loc) for k in range(len(of))]
        changed = [
            change(part, segment, k) if segment in self._halo.node_types else part
            for k, (part, segment) in enumerate(zip(rows, of, strict=True))
        ]
        return self.build.add(ir.Join(tuple(changed), self._twin(space) if sends else space), loc)

    def _beside(self, ref: ir.Ref, space: Space) -> ir.Ref:
        """An operand of row-wise work on the twin of `space`."""
        t = self._program.types[ref]
        return self._with_halo(ref) if isinstance(t, ir.Type) and t.space == space else self.where[ref]

    def _map(self, ref: ir.Ref) -> ir.Ref:
        """A map that leaves, to the twin."""
        node = self._program.nodes[ref]
        assert isinstance(node, ir.MapOf)
        return self.build.add(ir.MapOf(self.where[node.index], self._twin(node.cod)), self._program.locs[ref])

    def _leaves(self, ref: ir.Ref) -> bool:
        held = self._owned.values[ref].numbers
        return isinstance(held, Numbers) and held.leaves

    # -------------------------------------------------------- one node

    def _added(self, ref: ir.Ref) -> ir.Ref:
        node, loc = self._program.nodes[ref], self._program.locs[ref]
        match node:
            case ir.Push() | ir.Gram():
                return self._shard_fold(ref, node)
            case ir.Random(seed, t):
                return self.build.add(ir.Random(self._seed(seed, t.space, loc), t), loc)
            case ir.Aten(target=named.TENSOR_OF_SIZE, args=(ir.Operand(size), *_), type=t):
                if self._differs(size):
                    assert isinstance(t, ir.Type)
                    return self._cast(self._count(size, loc), t.dtype, loc)
            case ir.Aten(target="builtin._assert_rows", args=(ir.Operand(size), what, _)) if self._differs(size):
                words = f"{what}: expected rows to reduce over (got none on any rank)."
                args = (ir.Operand(self._count(size, loc)), words)
                return self.build.add(ir.Aten(named.ASSERT_TENSOR, args, (), ir.NOTHING), loc)
            case ir.JoinIndices(indices, of) if self._leaves(ref):
                twins = tuple(map(self._twin, of))
                renamed = tuple(self.where[i] for i in indices)
                never = (False,) * len(indices)
                return self.build.add(replace(node, indices=renamed, of=twins, wraps=never), loc)
            case _ if any(r in self._halo.leaving for r in operands(node)):
                return self._reading(ref)
        return self._copied(ref)

    def _copied(self, ref: ir.Ref) -> ir.Ref:
        kept = self.where.__getitem__ if ref in self._forward else self._kept
        return self.build.add(with_operands(self._program.nodes[ref], kept), self._program.locs[ref])

    def _kept(self, ref: ir.Ref) -> ir.Ref:
        """An operand of the backward. Of a value that was sent in the forward, the backward reads the own rows among
        own and halo rows, so that they are not kept twice."""
        sent = self._all.get(ref)
        if sent is None or ref not in self._forward or not isinstance(self.build.nodes[sent], ir.Exchange):
            return self.where[ref]
        if isinstance(self._program.nodes[ref], ir.Input) or ref in self._never_stale:
            return self.where[ref]
        return self._own_rows(ref)

    def _own_rows(self, ref: ir.Ref) -> ir.Ref:
        """The rank's own rows of a value among own and halo rows, where they have been sent or computed anyway."""
        loc = self._program.locs[ref]

        def own(part: ir.Ref, segment: Space, _: int) -> ir.Ref:
            return self.build.add(ir.Part(part, (segment, halo_of(segment)), 0), loc)

        return self._by_segment(self._with_halo(ref), row_space(self._program, ref), own, loc)

    def _reading(self, ref: ir.Ref) -> ir.Ref:
        """A node that reads rows along a map that leaves: a pull, or a product with a matrix for each row."""
        node = self._program.nodes[ref]
        leaving = [r for r in operands(node) if r in self._halo.leaving]
        spaces = {map_type(self._program, m).cod for m in leaving}

        def operand(r: ir.Ref) -> ir.Ref:
            t = self._program.types[r]
            if r in leaving:
                return self._map(r)
            on_other_end = (
                isinstance(t, ir.Type) and t.space in spaces and (not isinstance(node, ir.Pull) or r == node.x)
            )
            return self._with_halo(r) if on_other_end else self.where[r]

        return self.build.add(with_operands(node, operand), self._program.locs[ref])

    # -------------------------------------------------------- folds

    def _shard_fold(self, ref: ir.Ref, node: Folded) -> ir.Ref:
        """A push or gram: on the rank's rows, then over the ranks if others have rows for the same result."""
        m, loc = node.map, self._program.locs[ref]
        source, t = self._program.types[node.x], self._program.types[ref]
        assert isinstance(source, ir.Type)
        assert isinstance(t, ir.Type)
        fold = node.fold if isinstance(node, ir.Push) else Fold.sum
        leaves_rank = m is not None and m in self._halo.leaving
        if not leaves_rank and (source.space not in self._owned.sharded or t.space in self._owned.sharded):
            return self._copied(ref)
        if isinstance(fold, OwnFold):
            raise ShardError(
                f"the model cannot run over parts: a reducer of one's own would fold values of several ranks ({loc})."
                " Use sum, mean, max, min or prod, or run it on one process."
            )
        along = None if m is None else self._map(m) if leaves_rank else self.where[m]
        kept = self.where.__getitem__ if ref in self._forward else self._kept
        new = with_operands(node, lambda r: along if r == m and along is not None else kept(r))
        if not isinstance(new, ir.Push) or new.is_plain_sum:
            return self._over_ranks(self.build.add(new, loc), ref, fold)
        assert along is not None
        bare = self._over_ranks(self.build.add(replace(new, empty=neutral(fold, t.dtype)), loc), ref, fold)
        return self._or_empty(bare, ref, along, new.empty)

    def _over_ranks(self, folded: ir.Ref, ref: ir.Ref, fold: Fold) -> ir.Ref:
        node, t, loc = self._program.nodes[ref], self._program.types[ref], self._program.locs[ref]
        assert isinstance(node, ir.Push | ir.Gram)
        assert isinstance(t, ir.Type)
        if node.map is not None and node.map in self._halo.leaving:
            return self._sent_back(folded, fold, t.space, loc)
        return self.build.add(ir.AllReduce(folded, fold, self._sharding.group), loc)

    def _sent_back(self, folded: ir.Ref, fold: Fold, space: Space, loc: Location) -> ir.Ref:
        """The own rows of what was pushed to own and halo rows, with what all ranks have pushed to them."""

        def back(part: ir.Ref, segment: Space, _: int) -> ir.Ref:
            link = self._sharding.link_to(self._halo.node_types[segment])
            return self.build.add(ir.ExchangeBack(part, fold, link, segment), loc)

        return self._by_segment(folded, space, back, loc)

    def _or_empty(self, folded: ir.Ref, ref: ir.Ref, along: ir.Ref, empty: Number) -> ir.Ref:
        """`folded`, and `empty` where no rank pushes anything."""
        source, t, loc = self._types(ref), self._program.types[ref], self._program.locs[ref]
        assert isinstance(t, ir.Type)
        one = self.build.add(ir.Const(1, ir.Type(source, (), DType.i64)), loc)
        count = self._over_ranks(self.build.add(ir.Push(one, along, Fold.sum), loc), ref, Fold.sum)
        some = self.build.add(ir.Pointwise(Op.gt, (count, self._number(0, DType.i64, loc))), loc)
        wide = ir.Type(UNIT, t.shape, t.dtype)
        nothing = self.build.add(ir.Const(typed(empty, t.dtype), wide), loc)
        return self.build.add(ir.Pointwise(Op.where, (some, folded, nothing)), loc)

    def _types(self, ref: ir.Ref) -> Space:
        node = self._program.nodes[ref]
        assert isinstance(node, ir.Push)
        source = self._program.types[node.x]
        assert isinstance(source, ir.Type)
        return source.space

    # -------------------------------------------------------- counts and seeds

    def _differs(self, size: ir.Ref) -> bool:
        """Whether a number is computed from numbers of rows that differ from rank to rank."""
        t = self._program.types[size]
        node = self._program.nodes[size]
        if isinstance(t, ir.AnyType) and t.size is not None and not self._symbols.isdisjoint(leaves(t.size)):
            return True
        return isinstance(node, ir.Aten) and any(self._differs(r) for r in operands(node) if self._is_number(r))

    def _is_number(self, ref: ir.Ref) -> bool:
        t = self._program.types[ref]
        return isinstance(t, ir.AnyType) and t.dims is None and t.items is None

    def _count(self, size: ir.Ref, loc: Location) -> ir.Ref:
        """A number of rows over all ranks, or a function of such, as an i64 or f64 of shared data."""
        node = self._program.nodes[size]
        name = node.target.removeprefix("builtin.") if isinstance(node, ir.Aten) else ""
        if not isinstance(node, ir.Aten) or node.target == named.SIZE:
            kwargs = (("dtype", ir.Atom("torch.int64")),)
            own = ir.Aten(named.TENSOR_OF_SIZE, (ir.Operand(self.where[size]),), kwargs, ir.Type(UNIT, (), DType.i64))
            return self.build.add(ir.AllReduce(self.build.add(own, loc), Fold.sum, self._sharding.group), loc)
        if name not in (*_ON_SIZES, "truediv"):
            raise ShardError(
                f"the model cannot run over parts: the number of rows goes through {name or node.target} ({loc}), which"
                " is not known to give the number of the whole graph. Pass the number as an argument."
            )
        dtype = DType.f64 if name == "truediv" else DType.i64
        args = [self._counted(a, loc) for a in node.args]
        if any(self._dtype(a) is DType.f64 for a in args):
            dtype = DType.f64
        cast = tuple(self._cast(a, dtype, loc) for a in args)
        return self.build.add(ir.Pointwise(_ON_SIZES.get(name, Op.div), cast), loc)

    def _counted(self, arg: object, loc: Location) -> ir.Ref:
        if isinstance(arg, ir.Operand):
            if self._differs(arg.ref):
                return self._count(arg.ref, loc)
            kwargs = (("dtype", ir.Atom("torch.float64")),)
            number, wide = (ir.Operand(self.where[arg.ref]),), ir.Type(UNIT, (), DType.f64)
            return self.build.add(ir.Aten(named.TENSOR_OF_SIZE, number, kwargs, wide), loc)
        assert isinstance(arg, int | float)
        return self._number(arg, DType.f64 if isinstance(arg, float) else DType.i64, loc)

    def _dtype(self, ref: ir.Ref) -> DType:
        t = self.build.types[ref]
        assert isinstance(t, ir.Type)
        return t.dtype

    def _cast(self, ref: ir.Ref, dtype: DType, loc: Location) -> ir.Ref:
        return ref if self._dtype(ref) is dtype else self.build.add(ir.Cast(ref, dtype), loc)

    def _number(self, value: Number, dtype: DType, loc: Location) -> ir.Ref:
        return self.build.add(ir.Const(value, ir.Type(UNIT, (), dtype)), loc)

    def _seed(self, seed: ir.Ref, space: Space, loc: Location) -> ir.Ref:
        """The seed of random numbers: another one on each rank for rows of its own, the same for what all have."""
        new = self.where[seed]
        if space not in self._owned.sharded:
            return self.build.add(ir.AllReduce(new, Fold.max, self._sharding.group), loc)
        if self._sharding.rank == 0:
            return new
        offset = (self._sharding.rank * _SEED_STEP) % 2**63
        return self.build.add(ir.Pointwise(Op.add, (new, self._number(offset, DType.i64, loc))), loc)
