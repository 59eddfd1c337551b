"""Reused buffers: alignment, reuse without page faults, and lives that do not depend on the arena's."""

from __future__ import annotations

import errno
import gc
import io
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from graphweave.runtime import arena as arena_module
from graphweave.runtime.arena import SMALLEST, Arena, size_class
from tests import patience

MIB = 1 << 20


@pytest.fixture
def arena() -> Iterator[Arena]:
    pool = Arena(lambda: 64 * MIB)
    yield pool
    pool.trim()


def floats(arena: Arena, mib: float) -> Tensor:
    return arena.empty((int(mib * MIB) // 4,), torch.float32)


@pytest.mark.parametrize("nbytes", [SMALLEST, SMALLEST + 1, 3 * MIB - 1, 5 * MIB, 5 * MIB + 1, 2**33 + 12345])
def test_size_classes_waste_little(nbytes: int) -> None:
    size = size_class(nbytes)
    assert nbytes <= size <= nbytes * 1.125
    assert size % 4096 == 0
    assert size_class(size) == size


@pytest.mark.parametrize("shape", [(0,), (0, 5_000_000), (3,), (1000, 33), (1024, 1024), (600, 31, 33), (2_000_000, 1)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.int64, torch.bool])
def test_looks_like_any_other_tensor(arena: Arena, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    t = arena.empty(shape, dtype)
    plain = torch.empty(shape, dtype=dtype)
    assert (t.shape, t.stride(), t.dtype, t.device) == (plain.shape, plain.stride(), plain.dtype, plain.device)
    assert t.data_ptr() % 64 == 0
    assert not t._is_view()
    assert torch.equal(t.fill_(1), torch.ones(shape, dtype=dtype))
    assert arena.stats()["misses"] == (t.numel() * t.element_size() >= SMALLEST)


def test_a_freed_buffer_is_used_again(arena: Arena) -> None:
    first = floats(arena, 3)
    address = first.data_ptr()
    assert arena.stats() == {"in_use": 3 * MIB, "retained": 0, "hits": 0, "misses": 1}
    del first
    assert arena.stats() == {"in_use": 0, "retained": 3 * MIB, "hits": 0, "misses": 1}
    again = arena.empty((3 * MIB // 8 - 5,), torch.int64)  # another size of the same size class
    assert again.data_ptr() == address
    assert arena.stats() == {"in_use": 3 * MIB, "retained": 0, "hits": 1, "misses": 1}


def test_two_living_tensors_never_share(arena: Arena) -> None:
    tensors = [floats(arena, 2).fill_(i) for i in range(5)]
    assert [int(t.sum() / t.numel()) for t in tensors] == [0, 1, 2, 3, 4]
    assert len({t.data_ptr() for t in tensors}) == 5


def test_views_keep_the_buffer(arena: Arena) -> None:
    t = floats(arena, 2).fill_(7)
    view = t.view(-1, 64)[5:7, ::2].t()
    del t
    assert arena.stats()["in_use"] == 2 * MIB
    floats(arena, 2).fill_(-1)
    assert (view == 7).all()
    array = view.numpy()
    del view
    floats(arena, 2).fill_(-2)
    assert (array == 7).all()
    del array
    gc.collect()
    assert arena.stats()["in_use"] == 0


class Cube(torch.autograd.Function):
    pool: Arena

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, x: Tensor) -> Tensor:
        square = torch.mul(x, x, out=Cube.pool.empty(x.shape, x.dtype))
        ctx.save_for_backward(square)
        return torch.mul(square, x, out=Cube.pool.empty(x.shape, x.dtype))

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, *grads: Tensor) -> Tensor:
        (square,) = ctx.saved_tensors  # type: ignore[attr-defined]
        return grads[0] * square * 3


def test_saved_for_backward(arena: Arena) -> None:
    Cube.pool = arena
    x = torch.randn(600_000, requires_grad=True)
    y = Cube.apply(x)
    y.add_(1)  # the output may be edited, as the output of any function may
    assert arena.stats()["in_use"] == 2 * size_class(x.numel() * 4)
    assert floats(arena, 2).fill_(float("nan")).isnan().all()
    y.sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad, x.detach() * x.detach() * 3)
    del y
    assert arena.stats()["in_use"] == 0


def test_tensors_outlive_their_arena() -> None:
    pool = Arena(lambda: 0)
    t = floats(pool, 2).fill_(3)
    del pool
    gc.collect()
    assert (t == 3).all()
    del t


def test_what_is_retained_is_bounded(arena: Arena) -> None:
    tensors = [floats(arena, mib) for mib in (8, 32, 16, 24)]
    del tensors
    assert arena.stats()["retained"] == (8 + 16 + 24) * MIB  # the largest was freed first
    assert arena.trim() == 48 * MIB
    assert arena.stats()["retained"] == 0


def test_the_longest_unused_goes_first_among_equals() -> None:
    pool = Arena(lambda: 2 * MIB)
    old, young = floats(pool, 2), floats(pool, 2)
    address = young.data_ptr()
    del old
    del young
    assert pool.stats()["retained"] == 2 * MIB
    assert floats(pool, 2).data_ptr() == address


def test_nothing_is_retained_with_a_bound_of_zero() -> None:
    pool = Arena(lambda: 0)
    for _ in range(3):
        floats(pool, 2).fill_(1)
    assert pool.stats() == {"in_use": 0, "retained": 0, "hits": 0, "misses": 3}


@pytest.mark.skipif(sys.platform != "linux", reason="counts minor page faults as Linux does")
def test_reuse_takes_no_page_faults(arena: Arena) -> None:
    import resource  # not on every platform

    def faults() -> int:
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

    floats(arena, 32).fill_(1)
    before = faults()
    floats(arena, 32).fill_(2)
    assert faults() - before < 32 * MIB // 4096 // 50


def test_threads(arena: Arena) -> None:
    failures: list[int] = []

    def work(me: int) -> None:
        for i in range(60):
            t = floats(arena, 1 + i % 3).fill_(me)
            if not (t[:: 1 << 14] == me).all() or not (t == me).all():
                failures.append(me)

    workers = [threading.Thread(target=work, args=(me,)) for me in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not failures
    stats = arena.stats()
    assert stats["in_use"] == 0
    assert stats["hits"] + stats["misses"] == 240


def test_a_tensor_in_a_reference_cycle(arena: Arena) -> None:
    holder: list[object] = [floats(arena, 2)]
    holder.append(holder)
    del holder
    gc.collect()
    assert arena.stats()["in_use"] == 0


def test_inference_mode_and_serialization(arena: Arena) -> None:
    with torch.inference_mode():
        assert floats(arena, 2).is_inference()
    t = floats(arena, 2).fill_(4)
    file = io.BytesIO()
    torch.save(t, file)
    file.seek(0)
    assert torch.equal(torch.load(file), t)
    assert torch.equal(t.clone(), t)


def test_the_interpreter_may_exit_while_tensors_live() -> None:
    program = (
        "import torch, atexit\n"
        "from graphweave.runtime import arena\n"
        "t = arena.empty((1 << 20,), torch.float32).fill_(1)\n"
        "u = arena.empty((1 << 20,), torch.float32)\n"
        "cycle = [arena.empty((1 << 20,), torch.float32)]; cycle.append(cycle)\n"
        "del u\n"
        "atexit.register(lambda: print(arena.stats()['in_use'], float(t.sum())))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=patience.seconds())
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"{8 * MIB} {float(1 << 20)}\n"


def give_at_most(room: int, arena: Arena, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets the system map no more than `room` bytes, as one whose memory is full."""
    mapped = arena_module._map

    def with_limit(size: int) -> arena_module._Buffer:
        held = arena.stats()
        if held["in_use"] + held["retained"] + size > room:
            raise OSError(errno.ENOMEM, "Cannot allocate memory")
        return mapped(size)

    monkeypatch.setattr(arena_module, "_map", with_limit)


def test_free_buffers_make_room_for_others(arena: Arena, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call failed with an OSError while buffers of earlier calls had all memory."""
    give_at_most(12 * MIB, arena, monkeypatch)
    floats(arena, 6)
    floats(arena, 4)
    assert arena.stats()["retained"] == 10 * MIB
    large = floats(arena, 8)
    assert arena.stats()["retained"] == 0
    assert large.numel() * 4 == 8 * MIB


def test_no_memory_says_what_takes_less(arena: Arena, monkeypatch: pytest.MonkeyPatch) -> None:
    give_at_most(12 * MIB, arena, monkeypatch)
    kept = floats(arena, 8)
    with pytest.raises(MemoryError, match=r"8,388,608 bytes .* options=\{'memory'"):
        floats(arena, 8)
    del kept
    assert floats(arena, 8).numel() * 4 == 8 * MIB


def test_a_tensor_that_outlives_the_modules_at_exit_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    modules_live = True

    def bound() -> int:
        if not modules_live:
            raise TypeError("'NoneType' object is not callable")  # as at the exit of the interpreter
        return MIB

    monkeypatch.setattr(sys, "is_finalizing", lambda: not modules_live)
    kept = floats(Arena(bound), 2)
    modules_live = False
    del kept  # pytest turns an unraisable exception in here into an error
    gc.collect()
