"""Rows of `core/calls` against PyTorch: names, arguments, and what a row says of rows, elements and strides."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, fx

import graphweave
from graphweave.analysis.maps import is_injective
from graphweave.core import calls
from graphweave.core.calls import CALLS, CallFacts, Elements, Lead, facts_of, named
from graphweave.core.own_reducer import OwnReducer
from graphweave.exporting import aten_calls, aten_elements
from graphweave.frontends.calls.call_facts import facts
from graphweave.frontends.calls.captured_sizes import is_tensor
from graphweave.frontends.calls.row_rules import GRAM, PRODUCT, related
from graphweave.ir.message.aten import resolve
from graphweave.ir.message.nodes import Aten, MapOf, Pull
from tests.captures import capture

N, F = 6, 4


def rows(*more: int) -> Tensor:
    return torch.randn(N, *more, dtype=torch.float64, generator=torch.Generator().manual_seed(N + len(more)))


X, Y, V = rows(F), rows(F) + 1, rows()
INDEX = torch.tensor([3, 0, 5, 1, 1, 2])
WITHIN = torch.randint(F, (N, F), generator=torch.Generator().manual_seed(1))
W, TABLE = torch.randn(F, 3, dtype=torch.float64), torch.randn(9, F, dtype=torch.float64)

HEADS = rows(2, 3, 4), rows(2, 3, 4) + 1, rows(2, 3, 4) / 2
ATTENDED = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(*HEADS)

SAMPLES: Mapping[str, tuple[Any, ...]] = {
    "aten.index_select.default": (TABLE, 0, INDEX),
    "aten.gather.default": (X, 1, WITHIN),
    "aten.index.Tensor": (TABLE, [INDEX]),
    "aten._unsafe_index.Tensor": (TABLE, [INDEX]),
    "aten.embedding.default": (TABLE, INDEX),
    "aten.scatter_add.default": (X, 1, WITHIN, Y),
    "aten.scatter_reduce.two": (X, 1, WITHIN, Y, "amax"),
    "aten.scatter.src": (X, 1, WITHIN, Y),
    "aten.scatter.value": (X, 1, WITHIN, 2.0),
    "aten.index_add.default": (TABLE, 0, INDEX, X),
    "aten.index_reduce.default": (TABLE, 0, INDEX, X, "amax"),
    "aten.index_copy.default": (X, 1, torch.tensor([2, 0]), Y[:, :2].contiguous()),
    "aten.index_fill.int_Scalar": (X, 1, torch.tensor([2, 0]), 3.0),
    "aten.index_fill.int_Tensor": (X, 1, torch.tensor([2, 0]), torch.tensor(3.0, dtype=torch.float64)),
    "aten.index_put.default": (X, [X[:, 0] > 0], torch.tensor(0.5, dtype=torch.float64)),
    "aten._unsafe_index_put.default": (TABLE, [INDEX], X, True),
    "aten.embedding_dense_backward.default": (X, INDEX, 9, -1, False),
    "graphweave.fold_rows.default": (X, INDEX, 9, OwnReducer("maximum(x, y)", -9.0, "").text),
    "aten.expand.default": (rows(1), [N, F]),
    "aten.expand_copy.default": (rows(1), [N, F]),
    "aten.view.default": (rows(2, 2), [N, F]),
    "aten.reshape.default": (rows(2, 2), [N, F]),
    "aten._unsafe_view.default": (rows(2, 2), [N, F]),
    "aten.view_copy.default": (rows(2, 2), [N, F]),
    "aten._reshape_alias.default": (rows(2, 2), [N, F], [F, 1]),
    "aten._reshape_copy.default": (rows(2, 2), [N, F]),
    "aten.view_as_real.default": (torch.complex(X, Y),),
    "aten.view_as_complex.default": (rows(F, 2),),
    "aten.squeeze.default": (rows(1, F),),
    "aten.squeeze.dim": (rows(1, F), 1),
    "aten.squeeze.dims": (rows(1, F, 1), [1, 3]),
    "aten.unsqueeze.default": (X, 1),
    "aten.repeat.default": (X, [1, 3]),
    "aten.constant_pad_nd.default": (X, [1, 2], 0.5),
    "aten.permute.default": (rows(2, 3), [0, 2, 1]),
    "aten.permute_copy.default": (rows(2, 3), [0, 2, 1]),
    "aten.transpose.int": (rows(2, 3), 1, 2),
    "aten.flip.default": (X, [1]),
    "aten.cat.default": ([X, Y], 1),
    "aten.stack.default": ([X, Y], 1),
    "aten.select.int": (X, 1, 2),
    "aten.slice.Tensor": (X, 1, 1, 3),
    "aten.slice_scatter.default": (X, Y[:, 1:3], 1, 1, 3),
    "aten.select_scatter.default": (X, V, 1, 2),
    "aten.slice_backward.default": (X, [N, 9], 1, 2, 2 + F, 1),
    "aten.select_backward.default": (V, [N, F], 1, 2),
    "aten.sum.dim_IntList": (X, [1]),
    "aten.mean.dim": (X, [1], True),
    "aten.amax.default": (X, [1]),
    "aten.amin.default": (X, [1]),
    "aten.prod.dim_int": (X, 1),
    "aten.logsumexp.default": (X, [1]),
    "aten.linalg_vector_norm.default": (X, 2, [1]),
    "aten.var.correction": (X, [1]),
    "aten.any.dim": (X > 0, 1),
    "aten.all.dim": (X > 0, 1),
    "aten.argmax.default": (X, 1),
    "aten.argmin.default": (X, 1),
    "aten.cumsum.default": (X, 1),
    "aten.cumprod.default": (X, 1),
    "aten._softmax.default": (X, 0, False),
    "aten._log_softmax.default": (X, 1, False),
    "aten._softmax_backward_data.default": (X, Y.softmax(1), 1, torch.float64),
    "aten._log_softmax_backward_data.default": (X, Y.log_softmax(1), 1, torch.float64),
    "aten.mm.default": (X, W),
    "aten.addmm.default": (torch.randn(3, dtype=torch.float64), X, W),
    "aten.mv.default": (X, W[:, 0]),
    "aten.bmm.default": (rows(2, 3), rows(3, 2)),
    "aten.matmul.default": (rows(2, 3), rows(3, 2)),
    "aten.einsum.default": (PRODUCT, [rows(2, 3), torch.randn(2, 3, 5, dtype=torch.float64)]),
    "aten._scaled_dot_product_flash_attention_for_cpu.default": HEADS,
    "aten._scaled_dot_product_flash_attention_for_cpu_backward.default": (HEADS[1], *HEADS, *ATTENDED, 0.0, False),
    "aten.leaky_relu_backward.default": (X, Y, 0.1, False),
    "aten.elu_backward.default": (X, 1.0, 1.0, 1.0, False, Y),
    "aten.gelu_backward.default": (X, Y),
    "aten.softplus_backward.default": (X, Y, 1.0, 20.0),
    "aten.silu_backward.default": (X, Y),
    "aten.hardtanh_backward.default": (X, Y, -1.0, 1.0),
    "aten.native_dropout_backward.default": (X, Y > 1, 2.0),
    "aten.clone.default": (X,),
    "aten.alias.default": (X,),
    "aten.detach.default": (X,),
    "aten.contiguous.default": (X,),
    "aten.lift.default": (X,),
    "aten.detach_copy.default": (X,),
    "aten.alias_copy.default": (X,),
    "aten._to_copy.default": (X,),
    "prims.convert_element_type.default": (X, torch.float32),
    "aten.copy.default": (X, Y),
    "aten.fill.Scalar": (X, 2.0),
    "aten.zeros_like.default": (X,),
    "aten.sort.default": (X, 1),
    
    "aten.max.dim": (X, 1),
    "aten.min.dim": (X, 1),
    "aten.split.Tensor": (X, 2, 1),
    "aten.unbind.int": (X, 1),
    "aten.topk.default": (V, 3),
    "aten.nonzero.default": (V > 0,),
    "aten.argsort.default": (V,),
    
    "aten.arange.default": (N,),
    "aten.arange.start": (2, N),
    "aten.arange.start_step": (0, N, 2),
    "aten.randperm.default": (N,),
    "aten.masked_select.default": (X, X > 0),
    "aten.frexp.Tensor": (X,),
}  # fmt: skip

ALONG_ROWS: Mapping[str, tuple[Any, ...]] = {
    "aten.gather.default": (TABLE[:, :1], 0, INDEX[:, None]),
    "aten.scatter_add.default": (TABLE[:, :1], 0, INDEX[:, None], X[:, :1]),
    "aten.einsum.default": (GRAM, [rows(2, 3), rows(2, 5)]),
}
"""Calls that differ where they move rows."""


def flat(value: Any) -> list[Tensor]:
    items = value if isinstance(value, list | tuple) else [value]
    return [x for x in items if isinstance(x, Tensor)]


@pytest.mark.parametrize("name", sorted(n for n in CALLS if not n.startswith("builtin.")))
def test_a_row_names_a_call_and_its_arguments(name: str) -> None:
    known, op = CALLS[name], resolve(name)
    if not isinstance(op, torch._ops.OpOverload):
        assert known == CallFacts(any_strides=known.any_strides), "a row for all overloads says this alone"
        return
    arguments, returns = [a.name for a in op._schema.arguments], op._schema.returns
    assert set(known.alike) <= set(arguments)
    if known.rows in (Lead.reduced, Lead.along, Lead.taken, Lead.widened, Lead.parts):
        assert known.dim in arguments
    assert all(position < len(returns) for position in known.kept)
    assert len(known.results) in (1, len(returns))
    how = known.index
    if how is not None:
        assert arguments[how.at] in ("index", "indices")
        assert how.dim is None or arguments[how.dim] == "dim"
        assert how.source is None or arguments[how.source] in ("src", "source", "values", "grad_output")
        assert arguments[0] == "self" if how.base and "embedding" not in name else True
        assert how.listed == (str(op._schema.arguments[how.at].type) == "List[Optional[Tensor]]")


def test_each_row_that_says_something_of_rows_has_a_sample() -> None:
    random = {
        n for n in CALLS if any(word in n for word in ("rand_like", "randn_like", "bernoulli", "uniform", "normal"))
    }
    of_no_value = {"aten._conj.default", "aten.resolve_conj.default", "aten.resolve_neg.default", "aten.t.default",
                   "aten.lift_fresh.default", "aten.lift_fresh_copy.default"}  # fmt: skip
    fills = {
        n for n in CALLS if n.startswith(("aten.fill", "aten.zero.", "aten.ones_like", "aten.full_like", "aten.empty"))
    }
    cuts = {n for n in CALLS if "split" in n or "chunk" in n}
    said = {n for n, known in CALLS.items() if known.rows is not None} - random - of_no_value - fills - cuts
    assert said <= set(SAMPLES)


@pytest.mark.parametrize(
    ("name", "args"), [(n, a) for n, a in (*SAMPLES.items(), *ALONG_ROWS.items()) if CALLS[n].rows or CALLS[n].kept]
)
def test_rows_that_correspond_move_together(name: str, args: tuple[Any, ...]) -> None:
    """If all tensors whose rows correspond have their rows permuted, the result has its rows permuted, or is equal."""
    op = resolve(name)
    leaves, spec = torch.utils._pytree.tree_flatten(args)
    graph, inputs = fx.Graph(), dict[fx.Node, int]()

    def given(i: int, x: Any) -> Any:
        if not isinstance(x, Tensor):
            return x
        node = graph.placeholder(f"x{i}")
        node.meta["val"], inputs[node] = x, i
        return node

    node = graph.call_function(op, torch.utils._pytree.tree_unflatten([given(*x) for x in enumerate(leaves)], spec))
    node.meta["val"] = op(*args)
    results = [node]
    if isinstance(node.meta["val"], list | tuple):
        results = [graph.call_function(operator.getitem, (node, i)) for i in range(len(node.meta["val"]))]
        for result, value in zip(results, node.meta["val"], strict=True):
            result.meta["val"] = value
    classes = _classes(graph, [*inputs, *results])
    assert any(len(tensors) > 1 for tensors in classes), "nothing corresponds"
    order = torch.tensor([4, 2, 0, 5, 3, 1])
    for one in classes:
        if any(n.meta["val"].shape[:1] != (N,) for n in one):
            continue
        moved = {inputs[n] for n in one if n in inputs}
        other = [x[order] if i in moved else x for i, x in enumerate(leaves)]
        for result, got in zip(results, flat(op(*torch.utils._pytree.tree_unflatten(other, spec))), strict=True):
            want = result.meta["val"]
            torch.testing.assert_close(got, want[order] if result in one else want)


def _classes(graph: fx.Graph, tensors: list[fx.Node]) -> list[list[fx.Node]]:
    """The tensors of a graph, each with those whose rows correspond to its rows."""
    joined = [[n] for n in tensors]
    for node in graph.nodes:
        for a, b in related(node) if node.op == "call_function" and is_tensor(node) else ():
            if a in tensors and b in tensors and a.meta["val"].dim():
                both = [c for c in joined if a in c or b in c]
                joined = [c for c in joined if c not in both] + [[n for c in both for n in c]]
    return joined


@pytest.mark.parametrize("name", sorted(n for n in SAMPLES if CALLS[n].any_strides))
def test_strides_of_operands_change_nothing(name: str) -> None:
    if name in ("aten.view.default", "aten._reshape_alias.default", "aten.arange.default"):
        return  # views of other strides may be refused, which the importer spells as reshapes

    def scattered(x: Any) -> Any:
        if not isinstance(x, Tensor) or x.dim() == 0:
            return x
        wide = torch.zeros(*x.shape, 2, dtype=x.dtype).transpose(0, -2 if x.dim() > 1 else 0)
        wide = wide.transpose(0, -2 if x.dim() > 1 else 0)
        wide[..., 1] = x
        return wide[..., 1]

    op, args = resolve(name), SAMPLES[name]
    other = torch.utils._pytree.tree_map(scattered, args)
    try:
        got = flat(op(*other))
    except RuntimeError as error:
        assert "view" in str(error)
        return
    for a, b in zip(got, flat(op(*args)), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("name", sorted(n for n, args in SAMPLES.items() if args))
def test_elements_are_what_the_row_says(name: str) -> None:
    args, known = SAMPLES[name], CALLS[name]
    results = flat(resolve(name)(*args))
    given = torch.cat([_numbers(x) for x in flat(list(args[0]) if isinstance(args[0], list) else args[0])] or [V])
    kinds = known.results if len(known.results) > 1 else known.results * len(results)
    for kind, result in zip(kinds, results, strict=True):
        numbers = _numbers(result)
        if kind in (Elements.same, Elements.reshaped) and name != "aten.expand.default":
            assert torch.equal(numbers, given)
        elif kind is Elements.moved:
            assert torch.isin(numbers, given).all()
        elif kind in (Elements.positions, Elements.shuffled, Elements.places, Elements.numbered):
            assert bool((numbers >= 0).all()) and bool((numbers < N).all())
            if kind is not Elements.places and (not isinstance(args[0], Tensor) or args[0].dim() == 1):
                assert len(numbers.unique()) == len(numbers)
        elif kind is Elements.counted:
            assert len(numbers.unique()) == len(numbers)


def _numbers(x: Tensor) -> Tensor:
    return (torch.view_as_real(x) if x.is_complex() else x).double().reshape(-1)


def test_names_of_calls_stand_in_the_table_alone() -> None:
    """The translations for exported libraries, which are tables by name too, have files of their own."""
    table = Path(calls.__file__).parent
    exported = {Path(aten_calls.__file__), Path(aten_elements.__file__)}
    name = re.compile(r"(aten|prims)\.\w+(\.\w+)?")
    spelled = [
        f"{path}:{n.lineno}"
        for path in Path(graphweave.__file__).parent.rglob("*.py")
        if table not in path.parents and path not in exported and '"aten.' in (text := path.read_text())
        for n in ast.walk(ast.parse(text))
        if isinstance(n, ast.Constant) and isinstance(n.value, str) and name.fullmatch(n.value)
    ]
    assert spelled == []


def test_each_named_call_is_one_of_pytorchs() -> None:
    names = [value for name, value in vars(named).items() if name.isupper()]
    assert names and all(isinstance(resolve(n), torch._ops.OpOverload) for n in names)


def test_nothing_is_assumed_of_a_call_without_a_row() -> None:
    known = facts_of("aten.svd.default")
    assert known == CallFacts()
    assert known.rows is None and known.by_rank is None and not known.any_strides and known.works


def test_all_overloads_of_an_operator_may_have_one_row() -> None:
    assert facts_of("aten.median.dim").any_strides
    assert not facts_of("aten.view.dtype").any_strides, "it reads the bytes of memory"


def test_a_gather_needs_one_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """The worked example of CONTRIBUTING: what the row of index_select says is all that makes it a map."""

    def f(x: Tensor, index: Tensor) -> Tensor:
        return x.index_select(0, index) * 2

    assert any(isinstance(n, Pull) for n in capture(f, TABLE, INDEX.clone())[0].imported.program.nodes)
    facts.cache_clear()
    monkeypatch.setattr(calls, "CALLS", {n: k for n, k in CALLS.items() if n != "aten.index_select.default"})
    try:
        nodes = capture(f, TABLE, INDEX.clone())[0].imported.program.nodes
    finally:
        facts.cache_clear()
    assert any(isinstance(n, Aten) and n.target == "aten.index_select.default" for n in nodes)
    assert not any(isinstance(n, Pull) for n in nodes)


PICKS = {
    "sorted": (lambda x: x[x[:, 0].argsort()], True),
    "best": (lambda x: x[x[:, 0].topk(3).indices], True),
    "chosen": (lambda x: x[(x[:, 0] > 0).nonzero()[:, 0]], True),
    "shuffled": (lambda x: x[torch.randperm(x.shape[0])], True),
    "largest": (lambda x: x[x.argmax(1)], False),
    "of columns": (lambda x: x[x.sort(1).indices[:, 0]], False),
}


@pytest.mark.parametrize("case", PICKS)
def test_a_map_to_different_rows_is_known_by_the_call_that_made_its_index(case: str) -> None:
    f, different = PICKS[case]
    program = capture(f, X.clone())[0].imported.program
    (m,) = [r for r, n in enumerate(program.nodes) if isinstance(n, MapOf)]
    assert is_injective(program.nodes, m) == different
