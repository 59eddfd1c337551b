"""Loop-IR kernels over awkward graphs, run by the interpreter and as compiled C++."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch
from torch import Tensor

from graphweave.codegen.cpp import print_kernel
from graphweave.core.types import DType, Fold, Op
from graphweave.ir.loop import interp
from graphweave.ir.loop.nodes import (
    Accum,
    Alloc,
    Buffer,
    Call,
    CastTo,
    Csr,
    Degree,
    Edges,
    Expr,
    FoldLanes,
    IndexSum,
    Kernel,
    Lanes,
    Let,
    Lit,
    Load,
    Prefetch,
    Role,
    Stash,
    Store,
    Var,
)
from graphweave.ir.loop.parse import parse
from graphweave.ir.loop.types import identity
from graphweave.runtime import kernel_cache

TORCH = {
    DType.f64: torch.float64, DType.f32: torch.float32, DType.i64: torch.int64, DType.i32: torch.int32,
    DType.i16: torch.int16, DType.i8: torch.int8, DType.u8: torch.uint8, DType.bool: torch.bool,
}  # fmt: skip

HALVES = {DType.f16: torch.float16, DType.bf16: torch.bfloat16}

DEGREES: dict[str, tuple[int, ...]] = {
    "zero_rows": (),
    "one_node": (0,),
    "one_edge": (1,),
    "no_edges": (0, 0, 0, 0),
    "mixed": (3, 0, 1, 5, 0, 2, 9),
    "hub": (1, 40, 0, 2, 1),
}
"""In-degrees of the awkward graphs."""

V, K, U, E = Var("v"), Var("k"), Var("u"), Var("e")


def column(name: str, index: DType) -> Buffer:
    """Convention of `case_for`: "src" holds nodes, "perm" a permutation of the edges."""
    return Buffer(name, Role.column, index, "E", ())


def lanes_at(*names: str) -> tuple[Expr, ...]:
    return tuple(Var(name) for name in names)


# ---------------------------------------------------------------- kernels


def spmm(
    width: int, fold: Fold = Fold.sum, dtype: DType = DType.f32, index: DType = DType.i32, ahead: int = 0
) -> Kernel:
    """y[v] = fold over edges of x[src]; the identity where there is none."""
    hints = (Prefetch("x", "src", ahead),) if ahead else ()
    gather = Lanes((("c", width),), (Accum("acc", lanes_at("c"), fold, Load("x", (U, Var("c")))),))
    body = (
        Alloc("acc", dtype, (width,), identity(fold, dtype).value),
        Edges("k", "by_dst", "v", hints, (Let("u", index, Load("src", (K,))), gather)),
        Lanes((("c", width),), (Store("y", (V, Var("c")), Load("acc", lanes_at("c"))),)),
    )
    buffers = (
        column("src", index),
        Buffer("x", Role.input, dtype, "N", (width,)),
        Buffer("y", Role.output, dtype, "N", (width,)),
    )
    return Kernel(f"spmm_{fold.value}_{width}", "v", ("N", "E"), index, (Csr("by_dst"),), buffers, (), body)


def sddmm(width: int, fold: Fold = Fold.sum, dtype: DType = DType.f32, index: DType = DType.i64) -> Kernel:
    """y[e] = fold over features of x[src[e]] * g[dst[e]], in the user's edge order."""
    product = Let("p", dtype, Call(Op.mul, (Load("x", (U, Var("c"))), Load("g", (V, Var("c"))))))
    inner = (
        Let("u", index, Load("src", (K,))),
        Let("e", index, Load("perm", (K,))),
        FoldLanes("dot", dtype, fold, (("c", width),), (product,), Var("p")),
        Store("y", (E,), Var("dot")),
    )
    buffers = (
        column("src", index),
        column("perm", index),
        Buffer("x", Role.input, dtype, "N", (width,)),
        Buffer("g", Role.input, dtype, "N", (width,)),
        Buffer("y", Role.output, dtype, "E", ()),
    )
    body = (Edges("k", "by_dst", "v", (Prefetch("x", "src", 8),), inner),)
    return Kernel(f"sddmm_{width}", "v", ("N", "E"), index, (Csr("by_dst"),), buffers, (), body)


def attention(heads: int, width: int, dtype: DType = DType.f32, index: DType = DType.i32) -> Kernel:
    """y[v] = softmax over edges of leaky_relu(a[src] + b[v]), times z[src]: three phases and a stash."""
    f, hc, h = dtype, (("h", heads), ("c", width)), Var("h")
    u = Let("u", index, Load("src", (K,)))
    t = Let("t", f, Call(Op.add, (Load("a", (U, h)), Load("b", (V, h)))))
    slope = Call(Op.mul, (Var("t"), Lit(0.2, f)))
    leaky = Let("l", f, Call(Op.where, (Call(Op.gt, (Var("t"), Lit(0.0, f))), Var("t"), slope)))
    weight = Let("w", f, Call(Op.exp, (Call(Op.sub, (Var("l"), Load("m", (h,)))),)))
    alpha = Let("alpha", f, Call(Op.div, (Load("p", (K, h)), Load("s", (h,)))))
    weighted = Call(Op.mul, (Var("alpha"), Load("z", (U, h, Var("c")))))
    body = (
        Alloc("m", f, (heads,), float("-inf")),
        Edges("k", "by_dst", "v", (), (u, Lanes((("h", heads),), (t, leaky, Accum("m", (h,), Fold.max, Var("l")))))),
        Alloc("s", f, (heads,), 0.0),
        Edges("k", "by_dst", "v", (), (
            u, Lanes((("h", heads),), (t, leaky, weight, Store("p", (K, h), Var("w")),
                                       Accum("s", (h,), Fold.sum, Var("w")))),
        )),
        Alloc("acc", f, (heads, width), 0.0),
        Edges("k", "by_dst", "v", (Prefetch("z", "src", 3),),
              (u, Lanes(hc, (alpha, Accum("acc", lanes_at("h", "c"), Fold.sum, weighted))))),
        Lanes(hc, (Store("y", (V, h, Var("c")), Load("acc", lanes_at("h", "c"))),)),
    )  # fmt: skip
    buffers = (
        column("src", index),
        Buffer("a", Role.input, f, "N", (heads,)),
        Buffer("b", Role.input, f, "N", (heads,)),
        Buffer("z", Role.input, f, "N", (heads, width)),
        Buffer("y", Role.output, f, "N", (heads, width)),
    )
    stashes = (Stash("p", "by_dst", f, (heads,)),)
    return Kernel(f"attention_{heads}_{width}", "v", ("N", "E"), index, (Csr("by_dst"),), buffers, stashes, body)


def totals(width: int, dtype: DType = DType.f32) -> Kernel:
    """gram = sum_v x[v] outer x[v]; top, low, prod over all elements of a column; count = number of edges."""
    x_i, x_j = Load("x", (V, Var("i"))), Load("x", (V, Var("j")))
    scaled = Call(Op.mul, (x_i, Lit(0.5, dtype)))
    body = (
        Lanes((("i", width), ("j", width)), (Accum("gram", lanes_at("i", "j"), Fold.sum, Call(Op.mul, (x_i, x_j))),)),
        Lanes((("i", width),), (
            Accum("top", lanes_at("i"), Fold.max, x_i), Accum("low", lanes_at("i"), Fold.min, x_i),
            Accum("prod", lanes_at("i"), Fold.mul, scaled),
        )),
        Accum("count", (), Fold.sum, Degree("by_dst", V)),
    )  # fmt: skip
    buffers = (
        Buffer("x", Role.input, dtype, "N", (width,)),
        Buffer("gram", Role.total, dtype, None, (width, width), Fold.sum),
        Buffer("top", Role.total, dtype, None, (width,), Fold.max),
        Buffer("low", Role.total, dtype, None, (width,), Fold.min),
        Buffer("prod", Role.total, dtype, None, (width,), Fold.mul),
        Buffer("count", Role.total, DType.i64, None, (), Fold.sum),
    )
    return Kernel(f"totals_{width}", "v", ("N", "E"), DType.i64, (Csr("by_dst"),), buffers, (), body)


def reindexed(index: DType = DType.i32, big: int = 20000) -> Kernel:
    """Slices, pads, reshapes, transposes, flat pulls, large and scalar allocs, unit data, lanes of one iteration."""
    f = DType.f32
    near = Call(Op.lt, (Var("i"), Lit(3, DType.i64)))
    flat = IndexSum((("i", 3), ("one", 7), ("j", 1)))
    split = IndexSum(flat.terms, 0, 2, 3)
    body = (
        Let("r", index, Load("at", (V,))),
        Alloc("acc", f, (), 0.0),
        Alloc("big", f, (big,), 1.5),
        Lanes((("i", 2),), (Store("pad", (V, Var("i")), Lit(-1.0, f)),)),
        Lanes((("i", 6),), (
            Store("pad", (V, IndexSum((("i", 1),), 2)), Call(Op.where, (
                near, Load("x", (Var("r"), Var("i"))), Call(Op.neg, (Load("x", (V, Var("i"))),)),
            ))),
        )),
        Lanes((("i", 2),), (Store("pad", (V, IndexSum((("i", 1),), 8)), Lit(-1.0, f)),)),
        Lanes((("i", 2), ("one", 1), ("j", 3)), (
            Store("turn", (V, Var("j"), Var("i")), Call(Op.add, (
                Load("x", (V, flat)), Load("w", (split,)),
            ))),
        )),
        Lanes((("i", 6),), (Accum("big", (IndexSum((("i", 1),), big - 6),), Fold.sum, Load("x", (V, Var("i")))),)),
        Edges("k", "by_dst", "v", (), (
            Alloc("edge", DType.i32, (2,), 3),
            Lanes((("j", 2),), (Accum("edge", lanes_at("j"), Fold.sum, CastTo(Var("j"), DType.i32)),)),
            Accum("acc", (), Fold.sum, CastTo(Load("edge", (Lit(1, DType.i64),)), f)),
        )),
        FoldLanes("s", f, Fold.sum, (("i", 2), ("j", 3)), (), Load("big", (IndexSum((("i", 3), ("j", 1)), big - 6),))),
        Store("out", (V,), Call(Op.add, (Var("s"), Load("acc", ())))),
        Store("degree", (V,), Degree("by_dst", V)),
    )  # fmt: skip
    buffers = (
        Buffer("at", Role.index, index, "N", ()),
        Buffer("x", Role.input, f, "N", (6,)),
        Buffer("w", Role.input, f, None, (3,)),
        Buffer("pad", Role.output, f, "N", (10,)),
        Buffer("turn", Role.output, f, "N", (3, 2)),
        Buffer("out", Role.output, f, "N", ()),
        Buffer("degree", Role.output, DType.i64, "N", ()),
    )
    return Kernel("reindexed", "v", ("N", "E"), index, (Csr("by_dst"),), buffers, (), body)


def edge_mlp(
    inner: int, hidden: int, outer: int, dtype: DType = DType.f32, index: DType = DType.i32, size: int = 4
) -> Kernel:
    """m[e] = relu((x[src] - x[v]) w) w2 in tiles of `size`; its maximum, the ties by a stash, and a weight gradient."""
    f = dtype.value
    return parse(f"""
kernel edge_mlp_{inner}_{hidden}_{outer}(v < N, E; {index.value}) {{
  csr by_dst
  column src: {index.value}[E; ]
  column perm: {index.value}[E; ]
  in x: {f}[N; {inner}]
  in w: {f}[; {inner}, {hidden}]
  in w2: {f}[; {hidden * outer}]
  out y: {f}[N; {outer}]
  out ties: {f}[N; {outer}]
  out m: {f}[E; {outer}]
  total g: {f}[; {hidden}, {outer}] sum
  stash kept: {f}[by_dst; {outer}]
  do
    alloc top: {f}[{outer}] = -inf
    tiles t < {size} in by_dst[v] {{
      array a: {f}[t; {inner}]
      edges k in by_dst[v] of t prefetch x[src[k + 3]] {{
        let u: {index.value} = src[k]
        lanes c < {inner} {{ a[k, c] = sub(x[u, c], x[v, c]) }}
      }}
      array h: {f}[t; {hidden}]
      matmul h = a, w of t
      array r: {f}[t; {hidden}]
      edges k in by_dst[v] of t {{ lanes c < {hidden} {{ r[k, c] = relu(mul(h[k, c], 0.03125:{f})) }} }}
      matmul kept = r, w2 of t
      gram g = r, kept of t
      edges k in by_dst[v] of t {{
        let e: {index.value} = perm[k]
        lanes c < {outer} {{ top[c] max= kept[k, c]  m[e, c] = kept[k, c] }}
      }}
    }}
    alloc n: {f}[{outer}] = 0.0
    edges k in by_dst[v] {{ lanes c < {outer} {{ n[c] sum= cast(eq(kept[k, c], top[c]), {f}) }} }}
    lanes c < {outer} {{ y[v, c] = top[c]  ties[v, c] = n[c] }}
}}
""")


def online_attention(heads: int, width: int, dtype: DType = DType.f32, size: int = 4) -> Kernel:
    """y[v] = sum over edges of exp(a[src] - m[v]) z[src], m the maximum of a[src]; s the sum without z."""
    f = dtype.value
    return parse(f"""
kernel online_{heads}_{width}(v < N, E; i32) {{
  csr by_dst
  column src: i32[E; ]
  in a: {f}[N; {heads}]
  in z: {f}[N; {heads}, {width}]
  out y: {f}[N; {heads}, {width}]
  out s: {f}[N; {heads}]
  do
    alloc m: {f}[{heads}] = -inf
    alloc r: {f}[{heads}] = -inf
    alloc p: {f}[{heads}] = 0.0
    alloc acc: {f}[{heads}, {width}] = 0.0
    tiles t < {size} in by_dst[v] {{
      edges k in by_dst[v] of t {{ let u: i32 = src[k]  lanes h < {heads} {{ m[h] max= a[u, h] }} }}
      raise r[h < {heads}] to m[h] of t {{
        rescale h < {heads} {{ p[h] by {{1*h + 0}} }}
        rescale h < {heads}, c < {width} {{ acc[h, c] by {{1*h + 0}} }}
      }}
      edges k in by_dst[v] of t {{
        let u: i32 = src[k]
        alloc e: {f}[{heads}]
        lanes h < {heads} {{ e[h] = exp(sub(a[u, h], m[h])) }}
        lanes h < {heads} {{ p[h] sum= e[h] }}
        lanes h < {heads}, c < {width} {{ acc[h, c] sum= mul(e[h], z[u, h, c]) }}
      }}
    }}
    lanes h < {heads} {{ s[v, h] = p[h] }}
    lanes h < {heads}, c < {width} {{ y[v, h, c] = acc[h, c] }}
}}
""")


def two_ends() -> Kernel:
    """Rows of one buffer, asked for through two columns."""
    return parse("""
kernel two_ends(v < N, E; i32) {
  csr by_dst
  column src: i32[E; ]
  column via: i32[E; ]
  in x: f32[N; 9]
  out y: f32[N; 9]
  do
    alloc acc: f32[9] = 0.0
    edges k in by_dst[v] prefetch x[src[k + 2]] prefetch x[via[k + 2]] {
      let u: i32 = src[k]
      let w: i32 = via[k]
      lanes c < 9 { acc[c] sum= mul(x[u, c], x[w, c]) }
    }
    lanes c < 9 { y[v, c] = acc[c] }
}
""")


# ---------------------------------------------------------------- running kernels


@dataclass(frozen=True)
class Case:
    kernel: Kernel
    buffers: dict[str, Tensor]
    indptr: dict[str, Tensor]
    sizes: dict[str, int]

    @property
    def results(self) -> dict[str, Tensor]:
        return {b.name: self.buffers[b.name] for b in self.kernel.buffers if b.role in (Role.output, Role.total)}

    def copy(self) -> Case:
        return Case(self.kernel, {n: t.clone() for n, t in self.buffers.items()}, self.indptr, self.sizes)


def node_mlp(inner: int, hidden: int, dtype: DType = DType.f32, size: int = 5) -> Kernel:
    """Tiles of rows: y = relu(sum over edges of x[src] w + b), g = sum over rows of x' (the product)."""
    d = dtype.value
    return parse(f"""
kernel node_mlp_{inner}_{hidden}_{d}(v < N, E; i32) {{
  csr by_dst
  column src: i32[E; ]
  in x: {d}[N; {inner}]
  in w: {d}[; {inner}, {hidden}]
  in b: {d}[; {hidden}]
  out y: {d}[N; {hidden}]
  total g: {d}[; {inner}, {hidden}] sum
  do tile t < {size}
    array a: {d}[t; {inner}]
    rows of t {{
      alloc s: {d}[{inner}] = 0.0
      edges k in by_dst[v] {{
        let u: i32 = src[k]
        lanes c < {inner} {{ s[c] sum= x[u, c] }}
      }}
      lanes c < {inner} {{ a[v, c] = s[c] }}
    }}
    array h: {d}[t; {hidden}]
    matmul h = a, w of t
    rows of t {{ lanes c < {hidden} {{ y[v, c] = relu(add(h[v, c], b[c])) }} }}
    gram g = x, h of t
}}
""")


def row_sums(inner: int, outer: int, dtype: DType = DType.f32) -> Kernel:
    """Tiles of rows of memory alone: h = x w, y = 2 (h + x w2), z = y + x w."""
    d = dtype.value
    return parse(f"""
kernel row_sums_{inner}_{outer}_{d}(v < N; i32) {{
  in x: {d}[N; {inner}]
  in w: {d}[; {inner}, {outer}]
  in w2: {d}[; {inner}, {outer}]
  out h: {d}[N; {outer}]
  out z: {d}[N; {outer}]
  do tile t < 4
    matmul h = x, w of t
    array p: {d}[t; {outer}]
    matmul p = x, w of t
    matmul p = p + x, w2 of t
    array y: {d}[t; {outer}]
    rows of t {{ lanes c < {outer} {{ y[v, c] = mul(p[v, c], 2.0:{d}) }} }}
    matmul z = y + x, w of t
}}
""")


def node_stages(inner: int, outer: int, dtype: DType = DType.f32, size: int = 5) -> Kernel:
    """Tiles of rows: a softmax kept in a stash, products of its edges, a sum of products, one to memory, a gram."""
    d = dtype.value
    return parse(f"""
kernel node_stages_{inner}_{outer}_{d}(v < N, E; i32) {{
  csr by_dst
  column src: i32[E; ]
  in x: {d}[N; {inner}]
  in w: {d}[; {inner}, {outer}]
  in w2: {d}[; {inner}, {outer}]
  in square: {d}[; {inner}, {inner}]
  out h: {d}[N; {outer}]
  out y: {d}[N; {outer}]
  total g: {d}[; {inner}, {outer}] sum
  stash kept: {d}[by_dst; {inner}]
  do tile t < {size}
    array a: {d}[t; {inner}]
    rows of t {{
      alloc s: {d}[{inner}] = 0.0
      edges k in by_dst[v] {{
        let u: i32 = src[k]
        lanes c < {inner} {{ kept[k, c] = exp(x[u, c])  s[c] sum= kept[k, c] }}
      }}
      alloc m: {d}[{inner}] = 0.0
      tiles q < 3 in by_dst[v] {{
        array z: {d}[q; {inner}]
        matmul z = kept, square of q
        edges k in by_dst[v] of q {{ lanes c < {inner} {{ m[c] sum= mul(div(z[k, c], s[c]), 0.03125:{d}) }} }}
      }}
      lanes c < {inner} {{ a[v, c] = m[c] }}
    }}
    array p: {d}[t; {outer}]
    matmul p = a, w of t
    matmul p = p + x, w2 of t
    matmul h = x, w of t
    rows of t {{ lanes c < {outer} {{ y[v, c] = relu(p[v, c]) }} }}
    gram g = x, p of t
}}
""")


def case_for(kernel: Kernel, degrees: tuple[int, ...], seed: int = 0, special: bool = False) -> Case:
    """Signed random data of size ~1 (`special`: every seventh element NaN or infinite); results start as garbage."""
    gen = torch.Generator().manual_seed(seed)
    nodes, edges = len(degrees), sum(degrees)
    sizes = {"N": nodes, "E": edges}
    index = TORCH[kernel.index]
    indptr = torch.tensor([0, *itertools.accumulate(degrees)], dtype=index)
    buffers: dict[str, Tensor] = {}
    for buffer in kernel.buffers:
        shape = (*(() if buffer.rows is None else (sizes[buffer.rows],)), *buffer.shape)
        if buffer.name == "perm":
            buffers["perm"] = torch.randperm(edges, generator=gen).to(index)
        elif buffer.role in (Role.column, Role.index):
            buffers[buffer.name] = torch.randint(max(nodes, 1), shape, generator=gen).to(index)
        elif buffer.role is Role.input:
            data = torch.randn(shape, generator=gen, dtype=torch.float64)
            if special:
                picks = torch.tensor([float("nan"), float("inf"), float("-inf")], dtype=torch.float64)
                data.view(-1)[::7] = picks[torch.randint(3, (len(data.view(-1)[::7]),), generator=gen)]
            buffers[buffer.name] = data.to((TORCH | HALVES)[buffer.dtype])
        else:
            buffers[buffer.name] = torch.full(shape, 77, dtype=(TORCH | HALVES)[buffer.dtype])
    return Case(kernel, buffers, {csr.name: indptr for csr in kernel.csrs}, sizes)


def interpreted(case: Case) -> dict[str, Tensor]:
    done = case.copy()
    interp.run(done.kernel, done.buffers, done.indptr, done.sizes)
    return done.results


def chunks_of(rows: int, size: int) -> Tensor:
    return torch.tensor([*range(0, rows, size), rows])


def arguments(case: Case) -> tuple[list[Tensor], list[int]]:
    """Tensors and sizes in the order of the C ABI."""
    kernel = case.kernel
    tensors = [case.indptr[csr.name] for csr in kernel.csrs] + [case.buffers[b.name] for b in kernel.buffers]
    degrees = [int(case.indptr[csr.name].diff().max()) if case.sizes["N"] else 0 for csr in kernel.csrs]
    return tensors, [case.sizes[size] for size in kernel.sizes] + degrees


def compiled(case: Case, threads: int = 2, chunk: int = 2) -> dict[str, Tensor]:
    done = case.copy()
    tensors, sizes = arguments(done)
    function = kernel_cache.load(print_kernel(done.kernel), done.kernel.name)
    function([tensor.data_ptr() for tensor in tensors], sizes, chunks_of(done.sizes["N"], chunk), threads)
    return done.results
