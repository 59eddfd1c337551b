"""Results never come from an earlier graph: index tensors over reused memory, and every way to edit them."""

from __future__ import annotations

import ctypes
import mmap
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

import graphweave
from graphweave.core.settings import override
from graphweave.runtime import tracked, unseen_edits
from tests.sanitizer_support import run_sanitized
from tests.support import features, random_graph

NODES = 23
EDGES = 150


def summed(x: Tensor, index: Tensor) -> Tensor:
    """Messages of both ends, so that kernels walk one map and read the other."""
    src, dst = index[0], index[1]
    return torch.zeros_like(x).index_add_(0, dst, x.index_select(0, src) * 2.0)


def normalised(x: Tensor, index: Tensor) -> Tensor:
    """A mean by degrees, which a prelude computes."""
    degree = torch.zeros(x.shape[0], dtype=x.dtype).index_add_(0, index[1], torch.ones(index.shape[1], dtype=x.dtype))
    return summed(x, index) / degree.clamp(min=1.0)[:, None]


def on_edges(x: Tensor, index: Tensor) -> Tensor:
    """A result for each edge, whose kernel reads the index in the user's order."""
    return (x.index_select(0, index[0]) * x.index_select(0, index[1])).sum(1)


FUNCTIONS = (summed, normalised, on_edges)
both_doors = pytest.mark.parametrize(
    "door", [graphweave.compile, lambda f: torch.compile(f, backend="graphweave", dynamic=True)], ids=["own", "plain"]
)
functions = pytest.mark.parametrize("function", FUNCTIONS)


@pytest.fixture(autouse=True)
def fresh(fresh_compiler: None) -> None:
    """The functions are compiled anew for each test."""


def _graph(seed: int) -> Tensor:
    return random_graph(NODES, NODES, EDGES, seed=seed)


def _check(compiled: Callable[..., Tensor], function: Callable[..., Tensor], index: Tensor) -> None:
    """Compares the result and the gradient in float64 with eager mode on the index as it is now."""
    x = features(NODES, 6, torch.float64).requires_grad_()
    out = compiled(x, index)
    grad_out = features(out.numel(), 1, torch.float64, seed=5).view(out.shape)
    (grad,) = torch.autograd.grad(out, x, grad_out)
    wanted = function(x, index.clone())
    (wanted_grad,) = torch.autograd.grad(wanted, x, grad_out)
    torch.testing.assert_close(out, wanted)
    torch.testing.assert_close(grad, wanted_grad)


# ------------------------------------------------------------ a new tensor over memory used before


@both_doors
@functions
def test_an_array_refilled_in_place(door: Callable, function: Callable) -> None:
    compiled = door(function)
    array = _graph(0).numpy().copy()
    for make in (torch.from_numpy, torch.as_tensor, lambda a: torch.frombuffer(a, dtype=torch.int64).view(2, -1)):
        for seed in range(1, 4):
            _check(compiled, function, make(array))
            array[...] = _graph(seed).numpy()


@both_doors
@functions
def test_data_of_a_tensor_edited_between(door: Callable, function: Callable) -> None:
    compiled = door(function)
    edges = _graph(0)
    for seed in range(1, 4):
        _check(compiled, function, edges.data)
        edges.copy_(_graph(seed))
    for seed in range(4, 7):
        _check(compiled, function, edges.data)
        _check(compiled, function, edges)
        edges.copy_(_graph(seed))


def test_another_counter_is_another_tensor_without_any_checksum() -> None:
    with override(unseen_edits=False):
        compiled = graphweave.compile(normalised)
        edges = _graph(0)
        array = edges.numpy()
        for seed in range(1, 4):
            _check(compiled, normalised, edges.data)
            _check(compiled, normalised, torch.from_numpy(array))
            edges.copy_(_graph(seed))


def test_a_tensor_that_is_given_other_memory() -> None:
    """`t.data = other` does not raise the version counter; the next tensor may get the memory that `t` had."""
    compiled = graphweave.compile(summed)
    index = _graph(0)
    for seed in range(1, 6):
        _check(compiled, summed, index)
        index.data = _graph(seed)


def test_aliases_of_one_tensor_share_its_formats() -> None:
    compiled = graphweave.compile(normalised)
    edges = _graph(0)
    _check(compiled, normalised, edges)
    builds = graphweave.counters()["format_builds"], graphweave.counters()["hoist_builds"]
    for alias in (edges, edges.detach(), edges.view(2, -1), edges[:, :]):
        _check(compiled, normalised, alias)
    assert (graphweave.counters()["format_builds"], graphweave.counters()["hoist_builds"]) == builds


# ------------------------------------------------------------ edits that PyTorch does not see


def _through_data(index: Tensor, new: Tensor) -> None:
    index.data[...] = new


def _through_numpy(index: Tensor, new: Tensor) -> None:
    index.numpy()[...] = new.numpy()


def _through_dlpack(index: Tensor, new: Tensor) -> None:
    torch.from_dlpack(index).copy_(new)


def _through_the_storage(index: Tensor, new: Tensor) -> None:
    index.untyped_storage().copy_(new.untyped_storage())


def _through_a_pointer(index: Tensor, new: Tensor) -> None:
    ctypes.memmove(index.data_ptr(), new.contiguous().data_ptr(), new.numel() * new.element_size())


@both_doors
@functions
def test_edited_unseen(door: Callable, function: Callable) -> None:
    compiled = door(function)
    index = _graph(0)
    for i, edit in enumerate(
        (_through_data, _through_numpy, _through_dlpack, _through_the_storage, _through_a_pointer)
    ):
        _check(compiled, function, index)
        edit(index, _graph(i + 1))
        _check(compiled, function, index)
        assert graphweave.counters()["unseen_edits"] == i + 1


def with_loops(x: Tensor, index: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Returns what a prelude computes from the graph, beside what a kernel computes with it."""
    loops = torch.arange(x.shape[0])
    index = torch.cat([index, torch.stack([loops, loops])], 1)
    degree = torch.zeros(x.shape[0], dtype=x.dtype).index_add_(0, index[1], torch.ones(index.shape[1], dtype=x.dtype))
    return summed(x, index) / degree[:, None], index, degree


@both_doors
@pytest.mark.parametrize("grad", [False, True])
def test_results_edited_unseen(door: Callable, grad: bool) -> None:
    """A result that the user has edited is neither returned by the next call nor used in it."""
    compiled = door(with_loops)
    x, index = features(NODES, 6, torch.float64).requires_grad_(grad), _graph(0)
    for edited in (1, 2, 1):
        results = compiled(x, index)
        for found, wanted in zip(results, with_loops(x, index), strict=True):
            torch.testing.assert_close(found, wanted)
        results[edited].numpy()[...] = 3
    assert graphweave.counters()["hoist_hits"] > 0


@functions
def test_one_number_edited_unseen(function: Callable) -> None:
    compiled = graphweave.compile(function)
    index = _graph(0)
    for at in range(5):
        _check(compiled, function, index)
        index.numpy()[at % 2, 30 * at] = (index[at % 2, 30 * at] + 7) % NODES


def test_int32_indices_read_as_they_lie() -> None:
    compiled = graphweave.compile(on_edges)
    index = _graph(0).int()
    for seed in range(1, 4):
        _check(compiled, on_edges, index)
        _through_numpy(index, _graph(seed).int())


@pytest.mark.parametrize(
    "view", [lambda t: t.t().contiguous().t(), lambda t: t.repeat(1, 2)[:, ::2], lambda t: t.repeat(2, 2)[1:3, 7:EDGES]]
)
def test_views_edited_unseen(view: Callable[[Tensor], Tensor]) -> None:
    compiled = graphweave.compile(summed)
    index = view(_graph(0))
    for seed in range(1, 4):
        _check(compiled, summed, index)
        index.numpy()[...] = view(_graph(seed)).numpy()


def test_what_lies_between_the_rows_of_a_view_is_no_edit() -> None:
    whole = _graph(0).repeat(1, 2)
    index = whole.data[:, :EDGES]
    compiled = graphweave.compile(summed)
    for value in range(3):
        _check(compiled, summed, index)
        whole.numpy()[:, EDGES:] = value
    assert graphweave.counters()["unseen_edits"] == 0


def test_rows_given_apart_and_together() -> None:
    """A view is first seen after an edit of memory that was seen through another view."""
    index = _graph(0)
    together, apart = (
        graphweave.compile(summed),
        graphweave.compile(lambda x, src, dst: summed(x, torch.stack([src, dst]))),
    )
    x = features(NODES, 6, torch.float64)
    together(x, index)
    apart(x, index[0], index[1])
    _through_numpy(index, _graph(1))
    torch.testing.assert_close(apart(x, index[0], index[1]), summed(x, index))
    torch.testing.assert_close(together(x, index), summed(x, index))


_WRITES = """
import sys
with open(sys.argv[1], "r+b") as shared:
    shared.write(sys.stdin.buffer.read())
"""


def test_memory_of_another_process(tmp_path: Path) -> None:
    path = tmp_path / "edges"
    path.write_bytes(_graph(0).numpy().tobytes())
    with path.open("r+b") as file:
        index = torch.frombuffer(mmap.mmap(file.fileno(), 0), dtype=torch.int64).view(2, -1)
    compiled = graphweave.compile(normalised)
    _check(compiled, normalised, index)
    subprocess.run([sys.executable, "-S", "-c", _WRITES, path], input=_graph(1).numpy().tobytes(), check=True)
    assert index.equal(_graph(1))
    _check(compiled, normalised, index)


def test_the_option_and_the_setting_turn_it_off() -> None:
    index, x = _graph(0), features(NODES, 6)
    trusting = graphweave.compile(summed, options={"unseen_edits": False})
    first = trusting(x, index)
    _through_numpy(index, _graph(1))
    assert torch.equal(trusting(x, index), first)
    compiled = graphweave.compile(lambda x, index: summed(x, index) + 1.0)
    with override(unseen_edits=False):
        first = compiled(x, index)
        _through_numpy(index, _graph(2))
        assert torch.equal(compiled(x, index), first)
    assert graphweave.counters()["unseen_edits"] == 0


def test_an_edit_that_pytorch_sees_is_none_of_these() -> None:
    compiled = graphweave.compile(normalised)
    index = _graph(0)
    for seed in range(1, 4):
        _check(compiled, normalised, index)
        index.copy_(_graph(seed))
    assert graphweave.counters()["unseen_edits"] == 0


def test_the_eager_graph_backward_is_untouched() -> None:
    """Noticing an edit leaves version counters alone, so tensors that eager PyTorch saved before stay valid."""
    compiled = graphweave.compile(summed)
    index, x = _graph(0), features(NODES, 6, torch.float64).requires_grad_()
    compiled(x, index)
    _through_numpy(index, _graph(1))
    out = compiled(torch.relu(x.index_select(0, index[0])[:NODES]), index)
    (grad,) = torch.autograd.grad(out.sum(), x)
    (wanted,) = torch.autograd.grad(summed(torch.relu(x.index_select(0, index[0])[:NODES]), index).sum(), x)
    torch.testing.assert_close(grad, wanted)


_UNNOTICED = """
import torch, graphweave
from tests.frontends.dynamo.test_stale_graphs import FUNCTIONS, NODES, _graph
for function in FUNCTIONS:
    compiled = graphweave.compile(function, options={"unseen_edits": False})
    for dtype in (torch.int32, torch.int64):
        index, x = _graph(0).to(dtype), torch.randn(NODES, 6, requires_grad=True)
        sorted_index = index[:, torch.argsort(index[1], stable=True)].contiguous()
        for given in (index, sorted_index):
            first = compiled(x, given)
            first.sum().backward()
            for bad in (10**7, -(10**7)):
                given.numpy()[...] = bad
                again = compiled(x, given)
                again.sum().backward()
                assert torch.equal(again, first)
"""


@pytest.mark.slow
@pytest.mark.sanitize
def test_an_edit_that_is_not_noticed_reads_no_other_memory() -> None:
    run_sanitized(_UNNOTICED)


def test_an_edit_that_is_noticed_is_checked() -> None:
    compiled = graphweave.compile(on_edges)
    index, x = _graph(0).int(), features(NODES, 6)
    compiled(x, index)
    index.numpy()[1, 7] = NODES
    with pytest.raises(IndexError, match="out of range"):
        compiled(x, index)


# ------------------------------------------------------------ how soon edits are noticed


@pytest.mark.parametrize(("numel", "parts"), [(4096, 1), (4097, 4), (32768, 4), (32769, 16), (1048577, 64)])
def test_a_call_reads_one_part(numel: int, parts: int) -> None:
    """An edit of one number is noticed once in `parts` checks wherever it is, and the sums cover all numbers."""
    t = torch.arange(numel)
    for at in (0, numel // 3, numel - 1):
        record = unseen_edits._checked(t)
        assert record is not None
        assert [record.next_is_same() for _ in range(parts)] == [1] * parts
        t.numpy()[at] += 1
        assert sum(record.next_is_same() for _ in range(parts)) == parts - 1
        tracked.forget(t)
        unseen_edits._memories.clear()


@pytest.mark.parametrize("numel", [5000, 300_000])
def test_a_refilled_index_is_noticed_at_once(numel: int) -> None:
    t = torch.arange(numel)
    record = unseen_edits._checked(t)
    assert record is not None
    t.numpy()[1000:3048] += 1  # 16 KiB
    assert not record.next_is_same()


def test_exchanged_numbers_are_noticed() -> None:
    generator = torch.Generator().manual_seed(0)
    for _ in range(200):
        t = torch.randint(1000, (512,), generator=generator)
        record = unseen_edits._checked(t)
        assert record is not None
        i, j = torch.randint(512, (2,), generator=generator).tolist()
        a = t.numpy()
        same = a[i] == a[j]
        a[[i, j]] = a[[j, i]]
        assert bool(record.next_is_same()) == bool(same)


def test_many_slices_of_one_memory() -> None:
    """Mini-batches that are slices: each has a record, and there is a bound."""
    t = torch.arange(10_000)
    for i in range(600):
        unseen_edits.watch(t[i : i + 50])
    assert len(unseen_edits._memories.get(t) or ()) == unseen_edits._TENSORS


def test_a_record_may_be_replaced_while_a_program_has_it() -> None:
    """Another program notices the edit first, so the record that this program has is no longer kept."""
    t = torch.arange(100)
    mine, other = unseen_edits.Watch(), unseen_edits.Watch()
    for _ in range(50):
        mine(t)
        t.numpy()[0] += 1
        other(t)
        kept = [unseen_edits._Sums() for _ in range(50)]  # in the memory of a released tensor
        mine(t)
        del kept
    assert graphweave.counters()["unseen_edits"] == 50


def test_another_view_of_a_tensor_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows of an edge_index are other tensors at each call. An edit of them is noticed all the same."""
    index, checked = torch.arange(200).reshape(2, 100), list[Tensor]()
    made = unseen_edits._checked
    monkeypatch.setattr(unseen_edits, "_checked", lambda t: (checked.append(t), made(t))[1])
    watch = unseen_edits.Watch()
    for _ in range(3):
        watch(index[0])
    assert len(checked) == 1
    for other in (index[1], index[0, :50], index[0, ::2], index[0].view(torch.float64)):
        watch(other)
        watch(index[0])
    assert len(checked) == 9
    graphweave.reset_counters()
    index.numpy()[0] += 1
    watch(index[0])
    assert graphweave.counters()["unseen_edits"] == 1


def test_records_of_dead_tensors_go() -> None:
    before = len(unseen_edits._memories)  # counts of the whole process, in which some tensors are still alive
    rounds = 1000 + 3 * before + unseen_edits._memories._sweep_at
    for _ in range(rounds):
        unseen_edits.watch(torch.arange(8))
    assert len(unseen_edits._memories) < before + 0.9 * rounds
