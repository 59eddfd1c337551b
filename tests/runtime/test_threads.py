"""Kernels on PyTorch's threads: entering its OpenMP runtime, any compiler, any number of threads, and no runtime."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from graphweave.codegen.cpp import print_kernel
from graphweave.core.settings import override
from graphweave.runtime import kernel_cache, sources, threads
from graphweave.runtime.launch import NativeKernel
from graphweave.runtime.toolchain import toolchain
from tests import patience
from tests.loop_support import (
    Case,
    arguments,
    attention,
    case_for,
    chunks_of,
    compiled,
    edge_mlp,
    reindexed,
    spmm,
    totals,
)

MEET = """
#include <graphweave/parallel.h>

#include <sched.h>
#include <time.h>

// Every chunk waits until all have begun, each on a thread of its own, or until sizes[0] seconds have passed. Writes
// the number of the thread of each chunk. Without a thread for each, the result is 1, as if memory were missing.
extern "C" int32_t meet(void* const* ptrs, const int64_t* sizes, const int64_t* chunks, int64_t num_chunks,
                        int32_t num_threads) {
  int64_t* const used = static_cast<int64_t*>(ptrs[0]);
  const auto now = [] {
    timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return at.tv_sec;
  };
  const int64_t end = now() + sizes[0];
  int64_t begun = 0, alone = 0;
  gw_parallel(num_chunks, num_threads, [&](int64_t chunk, int32_t thread) {
    used[chunk] = thread;
    __atomic_fetch_add(&begun, 1, __ATOMIC_SEQ_CST);
    while (__atomic_load_n(&begun, __ATOMIC_SEQ_CST) < num_chunks) {
      if (now() > end) {
        __atomic_fetch_add(&alone, 1, __ATOMIC_SEQ_CST);
        return;
      }
      sched_yield();
    }
  });
  return alone > 0;
}
"""


def meet(kernel: NativeKernel, chunks: int, num_threads: int, seconds: int | None = None) -> list[int]:
    """The threads of the chunks, in rising order. MemoryError if the chunks did not all run at the same time."""
    used = torch.full((chunks,), -1, dtype=torch.int64)
    limit = int(patience.seconds()) if seconds is None else seconds
    kernel([used.data_ptr()], [limit], chunks_of(chunks, 1), num_threads)
    return sorted(used.tolist())


@pytest.mark.parametrize("command", ["g++", "clang++"])
def test_kernels_of_any_compiler_run_on_two_threads(command: str) -> None:
    """clang's own OpenMP could not use the runtime of PyTorch's wheels for Linux, which is GCC's."""
    if shutil.which(command) is None:
        pytest.skip(f"{command} is not installed")
    with override(cxx=command):
        assert meet(kernel_cache.load(MEET, "meet"), 2, 2) == [0, 1]


@pytest.mark.parametrize("count", [2, 3, 16])
def test_a_loop_gets_as_many_threads_as_it_asks_for(count: int) -> None:
    assert meet(kernel_cache.load(MEET, "meet"), count, count) == list(range(count))


def test_kernels_enter_the_one_openmp_runtime_that_torch_loaded() -> None:
    torch.rand(100_000).exp()  # lets torch start its OpenMP threads
    before = threads.loaded_openmp()  # more than torch's, if another package has brought its own
    meet(kernel_cache.load(MEET, "meet"), 2, 2)
    assert threads.loaded_openmp() == before
    if sys.platform == "linux":
        pool = threads.find_pool()
        assert pool is not None and pool.file in before


@pytest.mark.skipif(sys.platform != "linux", reason="reads the memory map of a Linux process")
def test_a_process_of_torch_and_kernels_has_one_openmp_runtime() -> None:
    program = (
        "from tests.runtime.test_threads import MEET, meet\n"
        "from graphweave.runtime import kernel_cache, threads\n"
        "meet(kernel_cache.load(MEET, 'meet'), 2, 2)\n"
        "print(len(threads.loaded_openmp()))\n"
    )
    paths = os.pathsep.join(filter(None, (str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "PYTHONPATH": paths}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "1", done.stderr


def test_libraries_ask_the_compiler_for_no_openmp() -> None:
    texts = [
        print_kernel(spmm(4)),
        print_kernel(totals(3)),
        *(content.decode() for content in sources.headers().values()),
    ]
    texts += [source.read_text() for source in (Path(threads.__file__).parent / "native").glob("*.cpp")]
    assert len(texts) > 20
    for text in texts:
        assert not [word for word in ("#pragma omp", "omp.h", "_OPENMP") if word in text]
    library = Path(kernel_cache.library(MEET)._name).read_bytes()
    assert not [name for name in (b"libgomp", b"libomp", b"libiomp") if name in library]


def test_without_a_runtime_kernels_run_on_the_calling_thread() -> None:
    kernel, library = kernel_cache.load(MEET, "meet"), kernel_cache.library(MEET)
    library.gw_use_threads(None)
    try:
        assert meet(kernel, 1, 2) == [0]
        with pytest.raises(MemoryError):  # the second chunk begins when the first has waited in vain
            meet(kernel, 2, 2, seconds=0)
    finally:
        threads.lend_threads(library)
    assert meet(kernel, 2, 2) == [0, 1]


def test_a_runtime_that_cannot_be_entered_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither one that nobody has loaded, nor one without the function."""
    find = threads.find_pool.__wrapped__
    with_it, without = (
        kernel_cache.shared_object(f'extern "C" void {name}() {{}}', toolchain()) for name in ("GOMP_parallel", "other")
    )
    monkeypatch.setattr(threads, "_openmp_file", lambda: with_it)
    assert find() is None
    ctypes.CDLL(str(with_it))
    assert find().file == with_it
    monkeypatch.setattr(threads, "_openmp_file", lambda: without)
    ctypes.CDLL(str(without))
    assert find() is None
    monkeypatch.setattr(threads, "_openmp_file", lambda: None)
    assert find() is None


CASES = {
    "a sum": spmm(33, ahead=2),
    "scratch of each thread for an array": reindexed(),
    "scratch of each thread for a row's edges": attention(3, 5),
    "totals": totals(9),
    "products of tiles": edge_mlp(5, 31, 3, size=3),
}


def case(name: str, rows: int) -> Case:
    return case_for(CASES[name], tuple(i % 7 for i in range(rows)), seed=rows)


@pytest.mark.parametrize("name", CASES)
def test_results_are_the_same_bits_for_any_number_of_threads(name: str) -> None:
    given = case(name, 90)
    one = compiled(given, threads=1, chunk=3)
    for count in (0, 2, 3, 16):
        for result, tensor in compiled(given, threads=count, chunk=3).items():
            assert torch.equal(tensor, one[result]), f"{result} on {count} threads"


def test_sixteen_threads_call_kernels_on_graphs_of_different_sizes_at_once() -> None:
    given = [
        case(name, rows)
        for rows in (1, 2, 5, 17, 40, 64, 90, 113)
        for name in ("totals", "scratch of each thread for a row's edges")
    ]
    wanted = [compiled(one, threads=1, chunk=3) for one in given]

    def call(i: int) -> None:
        for _ in range(10):
            for result, tensor in compiled(given[i], threads=2, chunk=3).items():
                assert torch.equal(tensor, wanted[i][result])

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(call, range(16)))


def test_a_kernel_within_a_loop_of_torchs_threads_computes_the_same() -> None:
    """As on the threads of autograd and of other callers, which may be in a parallel region already."""
    inner = (
        print_kernel(totals(9))
        + """
extern "C" int32_t inside(void* const* ptrs, const int64_t* sizes, const int64_t* chunks, int64_t num_chunks,
                          int32_t num_threads) {
  int32_t failed = 0;
  gw_parallel(2, 2, [&](int64_t i, int32_t) {
    if (i == 0) failed = NAME(ptrs, sizes, chunks, num_chunks, num_threads);
  });
  return failed;
}
""".replace("NAME", totals(9).name)
    )
    given = case("totals", 90)
    wanted = compiled(given, threads=1, chunk=3)
    tensors, sizes = arguments(given)
    kernel_cache.load(inner, "inside")([t.data_ptr() for t in tensors], sizes, chunks_of(90, 3), 2)
    for result, tensor in given.results.items():
        assert torch.equal(tensor, wanted[result])


def test_scratch_that_cannot_be_allocated_is_a_memory_error() -> None:
    """Before any thread is entered."""
    kernel = attention(3, 5)
    given = case_for(kernel, (2, 1, 3))
    tensors, sizes = arguments(given)
    sizes[-1] = 1 << 56  # the largest degree, by which scratch is measured
    with pytest.raises(MemoryError, match=kernel.name):
        kernel_cache.load(print_kernel(kernel), kernel.name)([t.data_ptr() for t in tensors], sizes, chunks_of(3, 1), 2)
