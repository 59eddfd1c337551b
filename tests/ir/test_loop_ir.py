"""The loop IR's text, verifier and interpreter."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from graphweave.core.errors import IRError, ParseError
from graphweave.core.types import DType, Fold, Op
from graphweave.ir.loop import interp
from graphweave.ir.loop.nodes import (
    Accum,
    Alloc,
    Buffer,
    Call,
    CastTo,
    Comment,
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
    Stmt,
    Store,
    Var,
)
from graphweave.ir.loop.parse import parse
from graphweave.ir.loop.show import show
from graphweave.ir.loop.types import identity
from graphweave.ir.loop.verify import verify
from tests.loop_support import (
    attention,
    case_for,
    edge_mlp,
    interpreted,
    node_mlp,
    node_stages,
    online_attention,
    reindexed,
    sddmm,
    spmm,
    totals,
)

ALL = [
    spmm(33), spmm(1, Fold.mul, DType.f64, DType.i64, ahead=3), sddmm(0), attention(4, 16), totals(5), reindexed(),
    edge_mlp(5, 3, 2), node_mlp(3, 4), node_stages(3, 4), online_attention(2, 3),
]  # fmt: skip


# ---------------------------------------------------------------- text


@pytest.mark.parametrize("kernel", ALL, ids=lambda kernel: kernel.name)
def test_text_round_trips(kernel: Kernel) -> None:
    assert parse(show(kernel)) == kernel


GOLDEN = """\
kernel spmm_sum_4(v < N, E; i32) {
  header "made by hand"
  csr by_dst
  column src: i32[E; ]
  in x: f32[N; 4]
  out y: f32[N; 4]
  do
    alloc acc: f32[4] = 0
    edges k in by_dst[v] prefetch x[src[k + 2]] {
      let u: i32 = src[k]
      lanes c < 4 {
        acc[c] sum= x[u, c]
      }
    }
    lanes c < 4 {
      y[v, c] = acc[c]
    }
}
"""


def test_golden_text() -> None:
    assert show(dataclasses.replace(spmm(4, ahead=2), header=("made by hand",))) == GOLDEN


NAMES = st.sampled_from(
    ["v", "u", "x", "acc", "let", "lanes", "sum", "inf", "nan", "true", "yield", "do", "cast", "f32"]
)
DTYPES = st.sampled_from(DType)
FOLDS = st.sampled_from(Fold)
SHAPES = st.lists(st.integers(0, 64), max_size=3).map(tuple)
LANES = st.lists(st.tuples(NAMES, st.integers(0, 64)), max_size=2).map(tuple)
NUMBERS = st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.just(math.nan)
TEXTS = st.text(max_size=8)


def _compound(inner: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
    call = st.sampled_from(Op).flatmap(lambda op: st.tuples(*[inner] * op.facts.arity).map(lambda args: Call(op, args)))
    load = st.builds(Load, NAMES, st.lists(inner, max_size=3).map(tuple))
    return call | load | st.builds(CastTo, inner, DTYPES) | st.builds(Degree, NAMES, inner)


INDEX_SUMS = st.builds(
    IndexSum,
    st.lists(st.tuples(NAMES, st.integers(-9, 9)), max_size=3).map(tuple),
    st.integers(-99, 99),
    st.integers(1, 9),
    st.none() | st.integers(1, 9),
)
EXPRS: st.SearchStrategy[Expr] = st.recursive(
    st.builds(Var, NAMES) | st.builds(Lit, NUMBERS, DTYPES) | INDEX_SUMS, _compound, max_leaves=6
)
INDICES = st.lists(EXPRS, max_size=2).map(tuple)
LETS = st.builds(Let, NAMES, DTYPES, EXPRS)
SIMPLE: st.SearchStrategy[Stmt] = st.one_of(
    LETS,
    st.builds(Alloc, NAMES, DTYPES, SHAPES, st.none() | NUMBERS),
    st.builds(Store, NAMES, INDICES, EXPRS),
    st.builds(Accum, NAMES, INDICES, FOLDS, EXPRS),
    st.builds(FoldLanes, NAMES, DTYPES, FOLDS, LANES, st.lists(LETS, max_size=2).map(tuple), EXPRS),
    st.builds(Comment, TEXTS),
)
HINTS = st.lists(st.builds(Prefetch, NAMES, NAMES, st.integers(1, 16)), max_size=2).map(tuple)


def _nested(inner: st.SearchStrategy[Stmt]) -> st.SearchStrategy[Stmt]:
    body = st.lists(inner, max_size=2).map(tuple)
    return st.builds(Lanes, LANES, body) | st.builds(Edges, NAMES, NAMES, NAMES, HINTS, body)


STMTS: st.SearchStrategy[Stmt] = st.recursive(SIMPLE, _nested, max_leaves=4)
KERNELS = st.builds(
    Kernel,
    NAMES,
    NAMES,
    st.lists(NAMES, max_size=2).map(tuple),
    DTYPES,
    st.lists(st.builds(Csr, NAMES), max_size=2).map(tuple),
    st.lists(
        st.builds(Buffer, NAMES, st.sampled_from(Role), DTYPES, st.none() | NAMES, SHAPES, st.none() | FOLDS),
        max_size=2,
    ).map(tuple),
    st.lists(st.builds(Stash, NAMES, NAMES, DTYPES, SHAPES), max_size=1).map(tuple),
    st.lists(STMTS, max_size=4).map(tuple),
    st.lists(TEXTS, max_size=2).map(tuple),
)


@given(KERNELS)
def test_any_kernel_round_trips(kernel: Kernel) -> None:
    text = show(kernel)
    assert show(parse(text)) == text
    if "nan" not in text:  # NaN differs from itself
        assert parse(text) == kernel


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("csr by_dst", "csr", "line 4, column 10: expected .* or 'stash' or 'do', got 'src"),
        ("f32[4]", "f33[4]", "line 8, column 16: expected one of f64, f32, .*, got 'f33"),
        ("sum= x", "sun= x", "line 12, column 16: expected one of sum, mul, max, min, got 'sun"),
        ("x[u, c]", "add(u c)", "line 12, column 27: expected ',' or '\\)', got 'c"),
        ("x[u, c]", "plus(u, c)", "line 12, column 21: expected one of tanh, .*, got 'plus"),
        ("alloc acc", "alloc $", "line 8, column 11: expected a name, got '\\$"),
        ("lanes c < 4", "lanes c < 4.5", "line 11, column 17: expected an integer, got '4.5"),
        ("}\n}\n", "}\n", "line 18, column 1: expected a name or '}', got 'the end of the text'"),
        ("}\n}\n", "}\n}\n}\n", "line 19, column 1: expected the end of the text, got '}'"),
    ],
)
def test_bad_text_is_refused_with_its_line(before: str, after: str, message: str) -> None:
    text = GOLDEN.replace(before, after, 1) if before[-1] != "\n" else GOLDEN.removesuffix(before) + after
    assert text != GOLDEN
    with pytest.raises(ParseError, match=message):
        parse(text)


# ---------------------------------------------------------------- verifier


@pytest.mark.parametrize("kernel", ALL, ids=lambda kernel: kernel.name)
def test_good_kernels_verify(kernel: Kernel) -> None:
    verify(kernel)


DECLARATIONS = """
kernel k(v < N, E; i32) {
  csr by_dst
  csr by_src
  column src: i32[E; ]
  in x: f32[N; 4]
  in d: f64[N; 4]
  in n: i32[N; 4]
  in b: bool[N; ]
  in w: f32[; 4]
  out y: f32[N; 4]
  total t: f32[; 4] sum
  stash p: f32[by_dst; 4]
  do
    alloc acc: f32[4] = 0.0
    %s
}
"""

_TILE = (
    "tiles t1 < 4 in by_dst[v] { array q: f32[t1; 4] array r: f32[t1; 1] array s: f32[t1; 2] array d1: f64[t1; 1] %s }"
)

BAD_BODIES = {
    "let a: f32 = z": r"body\[1\].let a: 'z' is not a variable here",
    "let a: f32 = q[v]": "'q' is not a buffer here",
    "let a: f32 = acc": "'acc' is not a variable here",
    "let a: f64 = x[v, {0}]": "the value is f32, expected f64",
    "let v: i64 = 0:i64": "'v' is already defined",
    "let N: i64 = 0:i64": "'N' is already defined",
    "lanes c < 2 { let a: i64 = c } let b2: i64 = a": "'a' is not a variable here",
    "lanes c < 2 { lanes c < 2 { } }": "'c' is already defined",
    "lanes c < -1 { }": r"zero or more iterations \(got -1\)",
    "lanes c < 2 { alloc a: f32[2] }": "an alloc belongs to a row or an edge",
    "alloc a: f32[-1]": "extents must not be negative",
    "let a: f32 = x[v]": r"'x' takes 2 indices \(got 1\)",
    "let a: f32 = x[v, w[{0}]]": r"an index must be an integer \(got f32\)",
    "let a: f32 = x[v, {4}]": r"'x' is indexed 4..4 along a dimension of 4",
    "lanes c < 5 { acc[c] = 0.0:f32 }": r"'acc' is indexed 0..4 along a dimension of 4",
    "lanes c < 4 { acc[{1*c + -1}] = 0.0:f32 }": r"'acc' is indexed -1..2 along a dimension of 4",
    "lanes c < 8 { let a: f32 = x[v, {1*c + 0 % 5}] }": r"'x' is indexed 0..4 along a dimension of 4",
    "let a: f32 = x[v, {1*c + 0}]": "'c' is not a lane here",
    "lanes c < 4 { let a: f32 = x[v, {1*c + 0 // 0}] }": "div and mod must be positive",
    "let a: f32 = add(x[v, {0}], d[v, {0}])": "operands of add differ in type: f32, f64",
    "let a: f32 = add(x[v, {0}])": r"add takes 2 operands \(got 1\)",
    "let a: f32 = where(x[v, {0}], 0.0:f32, 1.0:f32)": "the condition of where must be bool",
    "let a: f32 = where(b[v], 0.0:f32, 1.0:f64)": "operands of where differ in type",
    "let a: i32 = exp(n[v, {0}])": "exp is not defined on i32",
    "let a: bool = sub(b[v], b[v])": "sub is not defined on bool",
    "let a: bool = 1:bool": "a bool literal is true or false",
    "let a: i64 = degree(by_type, v)": "'by_type' is not a CSR",
    "x[v, {0}] = 0.0:f32": "'x' is not an output, an alloc or a stash",
    "t[{0}] = 0.0:f32": "'t' is not an output, an alloc or a stash",
    "y[v, {0}] sum= 0.0:f32": "'y' is neither an alloc or a tile's array nor a total",
    "t[{0}] max= 0.0:f32": "'t' is folded with another operator",
    "let a: f32 = y[v, {0}]": "'y' is an output and is never loaded",
    "let a: f32 = t[{0}]": "'t' is an output and is never loaded",
    "lanes c < 4 { acc[{0}] sum= 1.0:f32 }": "lanes of 'c' conflict",
    "lanes h < 2, c < 2 { acc[h] = 1.0:f32 }": "lanes of 'c' conflict",
    "let a: f32 = p[v, {0}]": "stash 'p' is indexed by a position of its CSR",
    "edges k in by_src[v] { p[k, {0}] = 0.0:f32 }": "stash 'p' is indexed by a position of its CSR",
    "edges k in by_type[v] { }": "'by_type' is not a CSR",
    "edges k in by_dst[u] { }": "the row must be the kernel's, 'v'",
    "lanes c < 2 { edges k in by_dst[v] { } }": "edges belong to a row, not to a lane",
    "edges k in by_dst[v] prefetch x[n[k + 1]] { }": "'n' is not a column",
    "edges k in by_dst[v] prefetch w[src[k + 1]] { }": "'w' is not an input with rows",
    "edges k in by_dst[v] prefetch x[src[k + 0]] { }": "the prefetch distance must be positive",
    "edges k in by_dst[v] { let a: f32 = z }": r"body\[1\].edges\[0\].let a: 'z' is not a variable",
    "fold s: f32 = sum c < 4 { yield d[v, c] }": r"body\[1\].foldlanes s: the value is f64, expected f32",
    "fold s: f32 = sum c < 4 { yield x[v, c] } let a: i64 = c": "'c' is not a variable here",
    '# "two\\nlines"': "must be one line",
    "tiles t1 < 0 in by_dst[v] { }": "a tile has at least one position",
    "tiles t1 < 4 in by_type[v] { }": "'by_type' is not a CSR",
    "tiles t1 < 4 in by_dst[v] { let a: i64 = t1 }": "'t1' is not a variable here",
    "tiles t1 < 4 in by_dst[v] { edges k in by_dst[v] { } }": "edges inside a tile are those of the tile",
    "tiles t1 < 4 in by_dst[v] { edges k in by_src[v] of t1 { } }": "'t1' is not a tile of 'by_src' here",
    "tiles t1 < 4 in by_dst[v] { tiles t2 < 4 in by_dst[v] { } }": "tiles belong to a row, not to a tile",
    "edges k in by_dst[v] of t1 { }": "'t1' is not a tile of 'by_dst' here",
    "array q: f32[t1; 4]": "belongs into the tile 't1'",
    "tiles t1 < 4 in by_dst[v] { array q: f32[t1; -4] }": "extents must not be negative",
    "tiles t1 < 4 in by_dst[v] { array q: f32[t1; 4] } let a: f32 = q[v, {0}]": "'q' is not a buffer here",
    _TILE % "let z: f32 = q[v, {0}]": "'q' is indexed by a position of its tile 't1'",
    _TILE % "edges k in by_dst[v] of t1 { q[k, {4}] = 0.0:f32 }": "'q' is indexed 4..4 along a dimension of 4",
    _TILE % "edges k in by_dst[v] of t1 { matmul r = q, w of t1 }": "outside its edges",
    _TILE % "matmul r = x, w of t1": "'x' is neither an array of the tile nor a stash",
    _TILE % "matmul r = q, x of t1": "'x' is neither shared data nor an alloc of the row",
    _TILE % "matmul r = p, t of t1": "'t' is neither shared data nor an alloc of the row",
    _TILE % "matmul s = q, w of t1": r"'w' must have 4 x 2 elements \(got 4\)",
    _TILE % "matmul q = q, w of t1": "'q' is both operand and result",
    _TILE % "matmul d1 = q, w of t1": "must be of one float type",
    _TILE % "array h: bf16[t1; 4] array i: f16[t1; 1] matmul i = h, w of t1": "or of one half type and f32",
    _TILE % "array h: bf16[t1; 4] matmul d1 = h, w of t1": "or of one half type and f32",
    "alloc s16: bf16[4] = 0.0 " + _TILE % "gram s16 = q, r of t1": r"a sum of products is f32 \(got bf16\)",
    _TILE % "gram w = q, r of t1": "'w' is neither a total that sums nor an alloc of the row",
    "alloc m: f32[4] raise m[c < 4] to acc[c] of t1 { }": "belongs into the tile 't1'",
    _TILE % "raise x[c < 4] to acc[c] of t1 { }": r"'x' is not an alloc of \[4\] elements",
    _TILE % "raise acc[c < 5] to w[c] of t1 { }": r"'acc' is not an alloc of \[5\] elements",
    _TILE % "raise acc[c < 4] to d[v, c] of t1 { }": "the value is f64, expected f32",
    _TILE % "raise acc[c < 4] to w[c] of t1 { rescale c < 4 { acc[c] by {1*c + 0} } }": "each sum is rescaled once",
    _TILE % "alloc m: f32[4] raise acc[c < 4] to w[c] of t1 { rescale c < 4 { m[c] by {1*c + 1} } }": "1..4 of 4",
    _TILE % "alloc m: f32[4] raise acc[c < 4] to w[c] of t1 { rescale c < 4 { m[{0}] by {1*c + 0} } }": "'c' conflict",
    _TILE % "alloc m: f64[4] raise acc[c < 4] to w[c] of t1 { rescale c < 4 { m[c] by {1*c + 0} } }": "'m' is not f32",
    _TILE % "gram t = q, q of t1": "'t' must have 4 x 4 elements",
}


@pytest.mark.parametrize("body", BAD_BODIES)
def test_bad_bodies_are_refused(body: str) -> None:
    verify(parse(DECLARATIONS % ""))
    with pytest.raises(IRError, match=BAD_BODIES[body]):
        verify(parse(DECLARATIONS % body))


@pytest.mark.parametrize(
    "body",
    [
        "lanes c < 0 { let a: f32 = x[v, c] }",
        "lanes c < 4 { let a: f32 = where(lt(c, 2:i64), x[v, c], 0.0:f32) }",
        "lanes c < 8 { let a: f32 = x[v, {1*c + 0 // 2}] }",
        "lanes h < 1 { acc[{0}] = 1.0:f32 }",
        "lanes c < 2 { let a: i64 = c } lanes c < 3 { let a: i64 = c }",
        "edges k in by_dst[v] { p[k, {0}] = 1.0:f32 let a: f32 = p[k, {1}] }",
        "edges k in by_dst[v] { alloc a: f32[2] a[{0}] max= 1.0:f32 }",
        _TILE % "matmul r = q, w of t1 gram t = r, q of t1 edges k in by_dst[v] of t1 { r[k, {0}] = p[k, {0}] }",
        _TILE % "matmul r = p, w of t1 gram t = p, r of t1",
        _TILE % "array h: bf16[t1; 4] array i: bf16[t1; 1] matmul i = h, w of t1 gram t = i, h of t1",
        _TILE % "array h: bf16[t1; 4] matmul r = h, w of t1 gram t = r, h of t1",
    ],
)
def test_fine_bodies_are_accepted(body: str) -> None:
    verify(parse(DECLARATIONS % body))


BAD_KERNELS: dict[str, Callable[[Kernel], Kernel]] = {
    "must begin with the kernel's row count": lambda k: dataclasses.replace(k, sizes=(), buffers=()),
    "the index dtype must be i32 or i64": lambda k: dataclasses.replace(k, index=DType.f32),
    "'x' is declared twice": lambda k: dataclasses.replace(k, csrs=(Csr("x"),)),
    "'a b' is not a name": lambda k: dataclasses.replace(k, name="a b"),
    "rows must be one of the sizes": lambda k: _with(k, Buffer("q", Role.input, DType.f32, "M", ())),
    "extents must not be negative": lambda k: _with(k, Buffer("q", Role.input, DType.f32, "N", (-1,))),
    "must be one i32 a row": lambda k: _with(k, Buffer("q", Role.column, DType.i64, "E", ())),
    "only totals, have a fold": lambda k: _with(k, Buffer("q", Role.total, DType.f32, None, ())),
    "a total has no rows": lambda k: _with(k, Buffer("q", Role.total, DType.f32, "N", (), Fold.sum)),
    "'z' is not a CSR of the kernel": lambda k: dataclasses.replace(k, stashes=(Stash("p", "z", DType.f32, ()),)),
    "must be one line": lambda k: dataclasses.replace(k, header=("a\nb",)),
}


def _with(kernel: Kernel, buffer: Buffer) -> Kernel:
    return dataclasses.replace(kernel, buffers=(*kernel.buffers, buffer))


@pytest.mark.parametrize("message", BAD_KERNELS)
def test_bad_declarations_are_refused(message: str) -> None:
    with pytest.raises(IRError, match=message):
        verify(BAD_KERNELS[message](spmm(4)))


def test_a_fold_holds_only_lets() -> None:
    fold = FoldLanes("s", DType.f32, Fold.sum, (("c", 4),), (Comment("x"),), Lit(0.0, DType.f32))  # type: ignore[arg-type]
    with pytest.raises(IRError, match="holds only lets"):
        verify(dataclasses.replace(spmm(4), body=(fold,)))


# ---------------------------------------------------------------- interpreter


def test_spmm_is_index_add() -> None:
    case = case_for(spmm(33), (3, 0, 1, 5))
    dst = torch.repeat_interleave(torch.arange(4), torch.tensor([3, 0, 1, 5]))
    want = torch.zeros(4, 33).index_add_(0, dst, case.buffers["x"][case.buffers["src"].long()])
    torch.testing.assert_close(interpreted(case)["y"], want)


def test_attention_is_softmax() -> None:
    degrees = (3, 1, 5)
    case = case_for(attention(2, 3, DType.f64), degrees)
    src, dst = case.buffers["src"].long(), torch.repeat_interleave(torch.arange(3), torch.tensor(degrees))
    logits = torch.nn.functional.leaky_relu(case.buffers["a"][src] + case.buffers["b"][dst], 0.2)
    want = torch.stack([
        (logits[dst == v].softmax(0)[:, :, None] * case.buffers["z"][src[dst == v]]).sum(0) for v in range(3)
    ])  # fmt: skip
    torch.testing.assert_close(interpreted(case)["y"], want)


def test_totals_over_no_rows_are_identities() -> None:
    results = interpreted(case_for(totals(2), ()))
    for buffer in totals(2).buffers[1:]:
        assert buffer.fold is not None
        assert (results[buffer.name] == identity(buffer.fold, buffer.dtype).value).all()


def test_negative_indices_do_not_wrap_around() -> None:
    kernel = parse(DECLARATIONS % "lanes c < 4 { let a: f32 = where(true:bool, x[v, {1*c + -1}], 0.0:f32) }")
    with pytest.raises(IRError, match=r"'x' is indexed -1\.\.2"):  # both branches of where are evaluated
        verify(kernel)
    buffers = {b.name: torch.zeros(2, 4) for b in kernel.buffers} | {"t": torch.zeros(4)}
    indptr = torch.zeros(3, dtype=torch.int32)
    with pytest.raises(IndexError, match="'x' is indexed"):
        interp.run(kernel, buffers, {"by_dst": indptr, "by_src": indptr}, {"N": 2, "E": 0})


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("tile t < 5", "tile t < 0", "at least one row"),
        ("array a", "let q: f32 = 1.0:f32 array a", "stands in 'rows of'"),
        ("rows of t {", "rows of u {", "belongs into the tile 'u'"),
        ("rows of t {", "rows of t { rows of t { }", "belongs into the tile 't'"),
        ("matmul h = a, w", "matmul h = y, w", "'y' is neither an array of the tile nor an input of its rows"),
        ("matmul h = a, w", "matmul h = b + a, w", "'b' is neither an array"),
        ("matmul h = a, w", "matmul h = a + a, w", "'a' must have 4 elements a row"),
    ],
)
def test_bad_tiles_of_rows_are_refused(before: str, after: str, message: str) -> None:
    text = show(node_mlp(3, 4))
    assert before in text
    with pytest.raises(IRError, match=re.escape(message)):
        verify(parse(text.replace(before, after, 1)))


def test_tiles_of_rows_compute_what_torch_does() -> None:
    case = case_for(node_mlp(3, 4, DType.f64), (2, 0, 5, 1, 1, 0, 3))
    given = case.buffers
    rows = torch.repeat_interleave(torch.arange(7), case.indptr["by_dst"].diff())
    aggregated = torch.zeros(7, 3, dtype=torch.float64).index_add(0, rows, given["x"][given["src"].long()])
    product = aggregated @ given["w"]
    got = interpreted(case)
    torch.testing.assert_close(got["y"], (product + given["b"]).relu())
    torch.testing.assert_close(got["g"], given["x"].T @ product)
