"""Lowers a fused push: out[v] = sum over edges e with dst(e) = v of (s(e) x(e)) W[t(e)].

Nothing of size edges x features is stored. A row of the kernel is a block of rows of the result, which stay in a near
cache while products are added to them. The block's edges come in groups of one type, and within a group in pairs of
type and row: the scaled rows of a pair's edges are summed before they are multiplied, so a pair takes one product.

    edges v in block[b] { out[v, c] = 0 }
    edges g in groups[b] {
      let t = group_type[g]
      tiles near < 48 in pairs[g] {
        array sums: f32[near; 64]
        edges p in pairs[g] of near {
          let v = pair_row[p]
          sums[p, c] = 0
          edges k in csr[p] { let u = ...  sums[p, c] sum= mul(s[e], x[u, c]) }
        }
        matmul out[pair_target] = out[pair_target] + sums, w[t] of near
      }
    }

The rows of a tile all differ, and no other block has them, so there are no atomics. A pair's product is added to its
row, or to the piece's own row of memory if the row is divided (`runtime/push_tables.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from graphweave.analysis.cones import type_of
from graphweave.analysis.facts import Facts
from graphweave.analysis.typed import PushedProduct, blocks_of, gathered, pushed_product
from graphweave.core.lines import NOWHERE
from graphweave.core.options import Options
from graphweave.core.types import DType, Fold, Op
from graphweave.ir.loop import nodes as loop
from graphweave.ir.loop.walk import expressions, statements, subexpressions
from graphweave.ir.message import nodes as ir
from graphweave.ir.message.builder import Builder
from graphweave.ir.message.infer import numel
from graphweave.lower.draft import CSR, Draft
from graphweave.lower.edge_pass import EdgeLoop
from graphweave.lower.parameters import Table
from graphweave.lower.schedule import Region
from graphweave.passes.factors import shaped

NUM_BLOCKS, NUM_GROUPS, NUM_PAIRS = "num_blocks", "num_groups", "num_pairs"

_BLOCK, _GROUPS, _PAIRS = "block", "groups", "pairs"
CSRS = (_BLOCK, _GROUPS, _PAIRS, CSR)
"""Names of the CSRs: rows of each block, groups of each block, pairs of each group, edges of each pair."""

_B, _G, _P, _TILE = "b", "g", "p", "near"
_TILE_PAIRS = 48
"""A tile has at most this many pairs: a multiple of the micro-product's height, be it 8, 6 or 4 rows."""


@dataclass(frozen=True, slots=True)
class FusedPush:
    """The kernel of a fused push, before half precision is widened; `types` is the map that chooses matrices."""

    kernel: loop.Kernel
    draft: Draft
    types: ir.Ref


def is_fused_push(program: ir.Program, region: Region) -> bool:
    return any(pushed_product(program, ref) is not None for ref in region.outputs)


def fused_push(
    facts: Facts, region: Region, stored: frozenset[ir.Ref], name: str, options: Options, index: DType,
    forced: frozenset[ir.Ref],
) -> FusedPush:  # fmt: skip
    """The kernel of the fused push that is the region's output; `forced` as in `Draft`. Raises NeedsLocal."""
    program, (ref,) = facts.program, region.outputs
    pushed = pushed_product(program, ref)
    assert pushed is not None and pushed.product.map is not None and region.map is not None
    summed, sum_ = _with_sum(program, pushed, region.map)
    read_along = gathered(program, pushed.product.x)
    on_the_fly = {pushed.product.x} if read_along.map is not None else set()
    inner = replace(region, members=(sum_,), outputs=())
    own = (NUM_BLOCKS, NUM_GROUPS, NUM_PAIRS)
    distance = _TILE_PAIRS if options.schedule.prefetch is None else options.prefetch_distance
    ahead = replace(options, prefetch_distance=distance)  # sources are in no order, so each is a cache miss
    draft = Draft(Facts(summed), inner, stored - on_the_fly, ahead, index, forced, own)
    body = (*_zeros(draft, ref), _groups(draft, ref, sum_, pushed))
    parameters = draft.parameters
    csrs = tuple(loop.Csr(csr) for csr in CSRS)
    kernel = loop.Kernel(name, _B, parameters.sizes, index, csrs, parameters.buffers, (), body)
    return FusedPush(kernel, draft, pushed.product.map)


def _with_sum(program: ir.Program, pushed: PushedProduct, m: ir.Ref) -> tuple[ir.Program, ir.Ref]:
    """`program` with one node more, and that node: the push of the scaled rows, which are multiplied after it."""
    build, x = Builder.of(program), pushed.product.x
    if pushed.scale is not None:
        x = build.add(ir.Pointwise(Op.mul, (shaped(build, pushed.scale, (), NOWHERE), x)))
    out = build.add(ir.Push(x, m, Fold.sum))
    return build.program(program.outputs, program.spaces), out


def _zeros(draft: Draft, ref: ir.Ref) -> list[loop.Stmt]:
    t = type_of(draft.program, ref)
    out, lane = draft.parameters.tensor(ref, loop.Role.output), draft.names.lane()
    store = loop.Store(out, (loop.Var("v"), loop.Var(lane)), loop.Lit(0.0, t.dtype))
    return [*draft.comment(ref), loop.Edges("v", _BLOCK, _B, (), (loop.Lanes(((lane, numel(t.shape)),), (store,)),))]


def _groups(draft: Draft, ref: ir.Ref, sum_: ir.Ref, pushed: PushedProduct) -> loop.Stmt:
    parameters, node = draft.parameters, pushed.product
    kind = loop.Let(
        "t", parameters.index, loop.Load(parameters.table(Table("group_type"), NUM_GROUPS), (loop.Var(_G),))
    )
    t = type_of(draft.program, sum_)
    array = loop.TileArray("sums", _TILE, t.dtype, (numel(t.shape),))
    out = loop.Rows(parameters.tensor(ref, loop.Role.output), parameters.table(Table("pair_target"), NUM_PAIRS))
    w, blocks = parameters.tensor(node.w), blocks_of(draft.program, pushed.ref)
    product = loop.TileMatMul(_TILE, out, array.name, w, out, kind.name, blocks=blocks)
    pairs = loop.Edges(_P, _PAIRS, _G, (), tuple(_pair(draft, sum_, array)), _TILE)
    tiles = loop.Tiles(_TILE, _TILE_PAIRS, _PAIRS, _G, (array, pairs, product))
    return loop.Edges(_G, _GROUPS, _B, (), (kind, tiles))


def _pair(draft: Draft, sum_: ir.Ref, array: loop.TileArray) -> list[loop.Stmt]:
    """Sums the scaled rows of a pair's edges into the pair's row of `array`."""
    lane, at = draft.names.lane(), (loop.Var(_P),)
    zero = loop.Store(array.name, (*at, loop.Var(lane)), loop.Lit(0.0, array.dtype))
    draft.row.at[sum_] = array.name, at
    walk = [
        replace(s, row=_P) if isinstance(s, loop.Edges) else s for s in EdgeLoop(draft, [sum_], [sum_]).statements()
    ]
    body: list[loop.Stmt] = [loop.Lanes(((lane, array.shape[0]),), (zero,)), *walk]
    if any(_reads_row(s) for s in statements(walk)):
        rows = draft.parameters.table(Table("pair_row"), NUM_PAIRS)
        body.insert(0, loop.Let("v", draft.parameters.index, loop.Load(rows, (loop.Var(_P),))))
    return body


def _reads_row(stmt: loop.Stmt) -> bool:
    return any(e == loop.Var("v") for top in expressions(stmt) for e in subexpressions(top))
