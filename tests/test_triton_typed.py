"""Typed products and grams in Triton against float64, in Triton's interpreter; their tables against lists."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from graphweave.codegen.triton.typed import FoldProgram, TypedProgram, print_fold, print_typed
from graphweave.compiler import triton_typed
from graphweave.compiler.triton_typed import TritonGram, TritonProduct
from graphweave.core.errors import DataError, IndexRangeError
from graphweave.core.types import DType
from graphweave.runtime import formats, index
from graphweave.runtime.index import Index
from graphweave.runtime.typed_pairs import Cut, typed_pairs
from graphweave.runtime.typed_parts import typed_parts
from tests.test_typed_kernels import DTYPES, close, draw, want_gram, want_product
from tests.triton_support import needs_interpreter

NODES = 23
"""Rows of a push; the last two have no edges."""


def rows_of_types() -> dict[str, tuple[Tensor, int]]:
    """Types of rows and the number of types; the interpreter takes milliseconds for a program, so both are few."""
    generator = torch.Generator().manual_seed(3)
    skewed = torch.full((90,), 3)
    skewed[::9] = torch.arange(10) % 6
    return {
        "no_rows": (torch.zeros(0, dtype=torch.int64), 4),
        "no_types": (torch.zeros(0, dtype=torch.int64), 0),
        "one_row": (torch.tensor([2]), 4),
        "one_type": (torch.zeros(40, dtype=torch.int64), 1),
        "sorted": (torch.arange(40) // 14, 3),
        "empty_types": (torch.arange(30) % 3 * 4 + 2, 12),
        "skewed": (skewed, 6),
        "many_types": (torch.randint(40, (44,), generator=generator), 40),
    }


TYPES = rows_of_types()


@pytest.fixture(autouse=True)
def many_parts_of_few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    small = {"ROWS": 16, "PART": 16, "FOLDED": 2}
    for name, value in small.items():
        monkeypatch.setattr(triton_typed, name, value)


def ends(edges: int) -> Tensor:
    """Rows of a push, one of which has a third of the edges."""
    generator = torch.Generator().manual_seed(edges)
    dst = torch.randint(NODES - 2, (edges,), generator=generator)
    return torch.where(torch.rand(edges, generator=generator) < 0.3, 13, dst)


def check_products(
    name: str, blocks: int, k: int, j: int, dtype: torch.dtype, *, gathers: bool, transposed: bool
) -> None:
    types, num = TYPES[name]
    rows, kind = types.numel(), DTYPES[dtype]
    w, y = draw(num, blocks, k, j, dtype=dtype), draw(rows, blocks, j, dtype=dtype)
    held, at, gather = draw(rows, blocks, k, dtype=dtype), torch.arange(rows), None
    if gathers:
        held, at = draw(11, blocks, k, dtype=dtype), at * 7 % 11
        gather = Index(at, 11)
    given = w.mT.contiguous() if transposed else w
    product = TritonProduct(blocks, k, j, kind, transposed)
    close(product(held, given, Index(types, num), gather), want_product(held[at], w, types), k)
    want = want_gram(held[at], y, types, num)
    close(TritonGram(blocks, k, j, kind)(held, y, Index(types, num), gather), want, rows)
    if gathers:
        close(TritonGram(blocks, j, k, kind)(y, held, Index(types, num), None, gather), want.mT, rows)


# ---------------------------------------------------------------- kernels


@needs_interpreter
@pytest.mark.parametrize("gathers", [False, True])
@pytest.mark.parametrize("name", TYPES)
def test_rows_of_every_distribution(name: str, gathers: bool) -> None:
    check_products(name, 1, 31, 33, torch.float32, gathers=gathers, transposed=gathers)


@needs_interpreter
@pytest.mark.parametrize(
    ("blocks", "k", "j"), [(1, 1, 1), (1, 1, 64), (1, 64, 1), (1, 33, 70), (1, 70, 64), (3, 5, 2), (3, 33, 31)]
)
def test_widths_and_blocks(blocks: int, k: int, j: int) -> None:
    check_products("sorted", blocks, k, j, torch.float64, gathers=True, transposed=blocks == 1)


@needs_interpreter
@pytest.mark.parametrize("dtype", DTYPES)
def test_dtypes(dtype: torch.dtype) -> None:
    check_products("skewed", 1, 5, 33, dtype, gathers=True, transposed=False)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_integers_are_exact(dtype: torch.dtype) -> None:
    types, num = TYPES["skewed"]
    kinds = Index(types, num)
    x, w, y = ((draw(*shape) * 9).to(dtype) for shape in ((90, 2, 3), (num, 2, 3, 4), (90, 2, 4)))
    kind = DType.i64 if dtype is torch.int64 else DType.i32
    got = TritonProduct(2, 3, 4, kind)(x, w, kinds)
    assert got.dtype is dtype and torch.equal(got.double(), want_product(x, w, types))
    assert torch.equal(TritonGram(2, 3, 4, kind)(x, y, kinds).double(), want_gram(x, y, types, num))


@needs_interpreter
@pytest.mark.parametrize("integers", [torch.int32, torch.int64])
def test_indices_wrap_where_they_may_and_are_refused_where_not(integers: torch.dtype) -> None:
    types, num = TYPES["skewed"]
    edges, at = types.numel(), torch.arange(types.numel()) % 11
    x, w, y = draw(11, 1, 5), draw(num, 1, 5, 3), draw(edges, 1, 3)
    good = Index(types.to(integers), num), Index(at.to(integers), 11)
    below = [Index(right.values - right.rows, right.rows, wrap=True) for right in good]
    product, gram = (kind(1, 5, 3, DType.f64) for kind in (TritonProduct, TritonGram))
    for t, s in (good, below):
        close(product(x, w, t, s), want_product(x[at], w, types), 5)
        close(gram(x, y, t, s), want_gram(x[at], y, types, num), edges)
    calls: list[Callable[[list[Index]], Tensor]] = [
        lambda i: product(x, w, i[0], i[1]),
        lambda i: gram(x, y, i[0], i[1]),
        lambda i: TritonGram(1, 3, 5, DType.f64)(y, x, i[0], None, i[1]),
    ]
    for position in range(2):
        for value in (-1, good[position].rows):
            wrong = good[position].values.clone()
            wrong[77] = value
            indices = [Index(wrong, right.rows) if i == position else right for i, right in enumerate(good)]
            for call in calls:
                with pytest.raises(IndexRangeError, match="at position 77 is out of range"):
                    call(indices)


@pytest.mark.parametrize("kind", [TritonProduct, TritonGram])
def test_what_is_no_work_needs_no_kernel(kind: type, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor Triton; but its indices are looked at."""

    def no_kernel(*_: object, **__: object) -> None:
        raise AssertionError("expected no kernel")

    monkeypatch.setattr(triton_typed, "launch", no_kernel)
    types, num = TYPES["skewed"]
    for rows, blocks, k, j in ((0, 1, 3, 4), (90, 1, 0, 4), (90, 1, 3, 0), (90, 0, 3, 4)):
        run, x = kind(blocks, k, j, DType.f32), torch.zeros(rows, blocks, k)
        second = torch.zeros(rows, blocks, j) if kind is TritonGram else torch.zeros(num, blocks, k, j)
        got = run(x, second, Index(types[:rows], num))
        shape = {TritonProduct: (rows, blocks, j), TritonGram: (num, blocks, k, j)}
        assert torch.equal(got, torch.zeros(shape[kind]))
        if rows:
            with pytest.raises(IndexRangeError):
                run(x, second, Index(types + num, num))


def test_rows_that_do_not_match_are_refused() -> None:
    types, num = TYPES["skewed"]
    kinds, w = Index(types, num), draw(num, 1, 5, 3)
    with pytest.raises(DataError, match="a type for each row"):
        TritonProduct(1, 5, 3, DType.f64)(draw(89, 1, 5), w, kinds)
    with pytest.raises(DataError, match="said to be 9"):
        TritonProduct(1, 5, 3, DType.f64)(draw(8, 1, 5), w, kinds, Index(types, 9))


@needs_interpreter
def test_strides_and_shapes_of_the_callers_tensors() -> None:
    types, num = TYPES["sorted"]
    kinds = Index(types, num)
    x, w, y = draw(8, 2 * types.numel()).T[::2], draw(num, 5, 8).mT, draw(5, types.numel()).T
    got = TritonProduct(1, 8, 5, DType.f64)(x, w, kinds)
    close(got, want_product(x.unsqueeze(1), w.unsqueeze(1), types).squeeze(1), 8)
    got = TritonGram(1, 8, 5, DType.f64)(x, y, kinds)
    close(got, want_gram(x.unsqueeze(1), y.unsqueeze(1), types, num).squeeze(1), types.numel())


@needs_interpreter
def test_tables_of_64_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which no graph that fits into a test needs."""
    monkeypatch.setattr(Index, "wide", True)
    check_products("skewed", 1, 5, 3, torch.float32, gathers=True, transposed=False)


@needs_interpreter
def test_two_runs_give_the_same_bits() -> None:
    types, num = TYPES["skewed"]
    kinds = Index(types, num)
    x, w, y = (draw(*shape, dtype=torch.float32) for shape in ((90, 33), (num, 33, 16), (90, 16)))
    runs: list[Callable[[], Tensor]] = [
        lambda: TritonProduct(1, 33, 16, DType.f32)(x, w, kinds),
        lambda: TritonGram(1, 33, 16, DType.f32)(x, y, kinds),
    ]
    assert all(torch.equal(run(), run()) for run in runs)


@needs_interpreter
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_what_is_not_finite_stays_with_its_row_and_type() -> None:
    types, num = TYPES["skewed"]
    kinds = Index(types, num)
    x, w, y = (draw(*shape, dtype=torch.float32) for shape in ((90, 33), (num, 33, 5), (90, 5)))
    x[int((types == 0).nonzero()[0])], w[4] = float("inf"), float("nan")
    touched = (types == 4) | x.isinf().any(1)
    finite = TritonProduct(1, 33, 5, DType.f32)(x, w, kinds).isfinite().all(1)
    assert torch.equal(finite, ~touched)
    assert torch.equal(TritonGram(1, 33, 5, DType.f32)(x, y, kinds).isfinite().all((1, 2)), torch.arange(num) != 0)


# ---------------------------------------------------------------- tables


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("name", TYPES)
def test_parts_hold_the_rows_of_each_type_once(name: str, wide: bool) -> None:
    types, num = TYPES[name]
    found = typed_parts(Index(types, num), 16, wide)
    counts = torch.bincount(types, minlength=num).tolist()
    starts = [sum(counts[:t]) for t in range(num)]
    want = [(t, starts[t] + at) for t in range(num) for at in range(0, counts[t], 16)]
    got = list(zip(found.kinds.tolist(), found.begins.tolist(), strict=True))
    assert got[: len(want)] == want and all(kind == -1 for kind, _ in got[len(want) :])
    assert len(got) <= types.numel() // 16 + num
    parts = {t: -(-n // 16) for t, n in enumerate(counts)}
    slots = iter(range(found.folds.slots))
    targets = [num + next(slots) if parts[t] > 1 else t for t, _ in want]
    assert found.targets.tolist()[: len(want)] == targets
    folds = list(zip(*(t.tolist() for t in found.folds.tensors), strict=True))
    several = [t for t, n in parts.items() if n > 1]
    assert [row for row, begin, end in folds if end > begin] == several
    covered = [num + slot for row, begin, end in folds for slot in range(begin, end)]
    assert covered == [target for target in targets if target >= num]


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("name", [name for name in TYPES if TYPES[name][0].numel()])
def test_pairs_hold_each_edge_once_in_order(name: str, wide: bool) -> None:
    types, num = TYPES[name]
    edges, dst = types.numel(), ends(types.numel())
    cut = Cut(block=8, piece=8)
    found = typed_pairs(Index(types, num), Index(dst, NODES), cut, wide)
    own = {t.dtype for t in found.tensors[: -len(found.folds.tensors)]}
    assert own == {torch.int64 if wide else torch.int32}
    order, first, targets = found.order.tolist(), found.edges.tolist(), found.pair_target.tolist()
    pairs, kinds, groups = found.pairs.tolist(), found.group_type.tolist(), found.groups.tolist()
    rows_of = {n + NODES: row for row, begin, end in zip(*(t.tolist() for t in found.folds.tensors), strict=True)
               for n in range(begin, end)}  # fmt: skip
    assert sorted(order) == list(range(edges)) and not found.block.any()
    walked, owners = [], {}
    for block in range(len(groups) - 1):
        here = kinds[groups[block] : groups[block + 1]]
        assert here == sorted(set(here))
        for group in range(groups[block], groups[block + 1]):
            members = range(pairs[group], pairs[group + 1])
            assert len({targets[p] for p in members}) == len(members) > 0
            for p in members:
                assert owners.setdefault(targets[p], block) == block
                here = order[first[p] : first[p + 1]]
                assert here and here == sorted(here) and len(here) <= cut.piece
                assert {int(types[e]) for e in here} == {kinds[group]}
                assert {int(dst[e]) for e in here} == {rows_of.get(targets[p], targets[p])} == {int(found.pair_row[p])}
                walked += here
    assert walked == order
    counts = torch.bincount(dst, minlength=NODES)
    assert sorted(set(rows_of.values())) == (counts > cut.piece).nonzero().squeeze(1).tolist()
    assert len(rows_of) == int((-(-counts[counts > cut.piece] // cut.piece)).sum()) <= found.folds.slots


def test_tables_are_made_once_and_again_after_an_edit() -> None:
    types, num = TYPES["skewed"]
    types, dst, cut = types.clone(), Index(ends(90), NODES), Cut(32, 8)
    first, pairs = typed_parts(Index(types, num), 16), typed_pairs(Index(types, num), dst, cut)
    assert typed_parts(Index(types, num), 16) is first and typed_pairs(Index(types, num), dst, cut) is pairs
    types[0] = (types[0] + 1) % num
    assert typed_parts(Index(types, num), 16) is not first and typed_pairs(Index(types, num), dst, cut) is not pairs


def test_nothing_waits_for_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """A number asked of a fake tensor, and a tensor on another device, is an error."""
    monkeypatch.setattr(formats, "cached", lambda key, tensors, build: build())
    for room in (formats, index):
        monkeypatch.setattr(room, "place", lambda t: ())  # which fake tensors do not have
    launched: list[str] = []

    def launch(kernel: triton_typed.TypedKernel, count: int, arguments: list[object], *_: object, **__: object) -> None:
        assert {t.device.type for t in arguments if isinstance(t, Tensor)} == {"cuda"}
        launched.append(kernel.name)

    monkeypatch.setattr(triton_typed, "launch", launch)
    with FakeTensorMode(), torch.device("cuda"):
        x, w, y = torch.zeros(70, 31), torch.zeros(9, 31, 33), torch.zeros(5000, 33)
        types, src = (Index(torch.zeros(5000, dtype=torch.int64), rows, wrap=True) for rows in (9, 70))
        results = [
            TritonProduct(1, 31, 33, DType.f32)(x, w, types, src),
            TritonGram(1, 31, 33, DType.f32)(x, y, types, src),
        ]
    assert [tuple(result.shape) for result in results] == [(5000, 33), (9, 31, 33)]
    assert {result.device.type for result in results} == {"cuda"}
    assert len(launched) == 3  # one is folded


# ---------------------------------------------------------------- texts


def test_texts_say_what_they_need() -> None:
    plain = TypedProgram("matmul", 1, 64, 64, DType.f32)
    assert "k <" not in print_typed(plain) and ".to(tl.float32)" not in print_typed(plain)
    assert ".to(tl.bfloat16)" in print_typed(TypedProgram("matmul", 1, 64, 64, DType.bf16))
    assert print_typed(plain) == print_typed(TypedProgram("matmul", 1, 64, 64, DType.f32))


def test_golden_texts_of_small_kernels(golden: Callable[[str, str], None]) -> None:
    golden("triton_typed_matmul.txt", print_typed(TypedProgram("matmul", 1, 31, 33, DType.f32)))
    golden("triton_typed_gram.txt", print_typed(TypedProgram("gram", 1, 31, 33, DType.f32)))
    golden("triton_typed_fold.txt", print_fold(FoldProgram(1023, DType.f32)))
