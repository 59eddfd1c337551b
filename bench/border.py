"""What it costs to go from PyTorch to native code and back: the parts of a call of a compiled function.

    python -m bench.border [--repeats 200] [--threads 1] [--out FILE]

Each number is the best fifth of the repeats, in microseconds. Four groups:

- *reading*: the addresses of tensors, by `data_ptr`, and as handles of PyTorch's stable C interface.
- *making*: tensors by `torch.empty`, by the arena, and by the C interface.
- *calling*: a native function through ctypes; a product by the operator, by PyTorch's own function, and by the C
  interface.
- *frames*: a two-layer GraphSAGE with its loss on 30 nodes and 60 edges, forward and backward: eager, `torch.compile`
  with a backend that hands the graph back, with one that hands back AOTAutograd's halves, with one whose halves compute
  nothing, with Inductor, and graphweave behind `torch.compile` and behind `graphweave.compile`; on one graph again and
  again, and on a new one in each call.
"""

from __future__ import annotations

import copy
import ctypes
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from struct import Struct
from typing import Any

import torch
from functorch.compile import aot_module_simplified, make_boxed_func
from torch import Tensor
from torch_geometric.nn import SAGEConv

import graphweave
from bench.case import Bench, Numbers
from bench.common import ratio_table
from bench.runner import run
from bench.workloads import Layers, WithLoss
from graphweave.runtime import arena

WIDTH, NODES, EDGES = 64, 30, 60
TENSORS = (1, 4, 16)
INNER = 200
"""Calls that are timed together, as one takes less than the clock's own time."""


def best(call: Callable[[], Any], repeats: int, inner: int = INNER) -> float:
    """Microseconds of a call: the mean of the best fifth."""
    times = []
    for _ in range(repeats):
        begun = time.perf_counter()
        for _ in range(inner):
            call()
        times.append((time.perf_counter() - begun) / inner)
    fastest = sorted(times)[: max(1, repeats // 5)]
    return 1e6 * sum(fastest) / len(fastest)


class Shim:
    """PyTorch's stable C interface through ctypes."""

    def __init__(self) -> None:
        self.lib = ctypes.CDLL(str(Path(torch.__file__).parent / "lib/libtorch_cpu.so"))
        self.free = self.lib.aoti_torch_delete_tensor_object
        self.free.argtypes = (ctypes.c_void_p,)
        self.mm = self.lib.aoti_torch_cpu_mm_out
        self.mm.argtypes = (ctypes.c_void_p,) * 3
        self.capsules: Callable[[list[Tensor]], list[Any]] = torch._C._aoti.unsafe_alloc_void_ptrs_from_tensors
        self.tensors: Callable[[list[Any]], list[Tensor]] = torch._C._aoti.alloc_tensors_by_stealing_from_void_ptrs
        self.pointer, self.capsule = ctypes.pythonapi.PyCapsule_GetPointer, ctypes.pythonapi.PyCapsule_New
        self.pointer.argtypes, self.pointer.restype = (ctypes.py_object, ctypes.c_char_p), ctypes.c_void_p
        self.capsule.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
        self.capsule.restype = ctypes.py_object
        self.empty = self.lib.aoti_torch_empty_strided
        self.empty.argtypes = (
            ctypes.c_int64, ctypes.POINTER(ctypes.c_int64), ctypes.POINTER(ctypes.c_int64), ctypes.c_int32,
            ctypes.c_int32, ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p),
        )  # fmt: skip
        self.f32, self.cpu = self.lib.aoti_torch_dtype_float32(), self.lib.aoti_torch_device_type_cpu()

    def handles(self, tensors: list[Tensor]) -> list[int]:
        return [self.pointer(capsule, None) for capsule in self.capsules(tensors)]

    def read(self, tensors: list[Tensor]) -> None:
        for handle in self.handles(tensors):
            self.free(handle)

    def made(self, count: int) -> list[Tensor]:
        sizes, strides = (ctypes.c_int64 * 2)(NODES, WIDTH), (ctypes.c_int64 * 2)(WIDTH, 1)
        out = ctypes.c_void_p()
        handles = []
        for _ in range(count):
            self.empty(2, sizes, strides, self.f32, self.cpu, 0, ctypes.byref(out))
            handles.append(self.capsule(out.value, None, None))
        return self.tensors(handles)


def addresses(tensors: Sequence[Tensor]) -> list[int]:
    return [t.data_ptr() for t in tensors]


def several(make: Callable[[], Tensor], count: int) -> list[Tensor]:
    return [make() for _ in range(count)]


def reading(shim: Shim, repeats: int) -> dict[str, float]:
    out: dict[str, float] = {}
    for count in TENSORS:
        tensors = [torch.randn(NODES, WIDTH) for _ in range(count)]
        out[f"{count} addresses by data_ptr"] = best(partial(addresses, tensors), repeats)
        out[f"{count} handles, made and freed"] = best(partial(shim.read, tensors), repeats)
    return out


def making(shim: Shim, repeats: int) -> dict[str, float]:
    out: dict[str, float] = {}
    shape, dtype = (NODES, WIDTH), torch.float32
    for count in TENSORS:
        out[f"{count} by torch.empty"] = best(partial(several, partial(torch.empty, NODES, WIDTH), count), repeats)
        out[f"{count} by the arena"] = best(partial(several, partial(arena.empty, shape, dtype), count), repeats)
        out[f"{count} by the C interface"] = best(partial(shim.made, count), repeats)
    return out


def calling(shim: Shim, repeats: int) -> dict[str, float]:
    a, b, c = (torch.randn(16, 16) for _ in range(3))
    handles = shim.handles([c, a, b])
    packed = Struct("16P")
    nothing = shim.lib.aoti_torch_device_type_cpu
    with torch.no_grad():
        times = {
            "an empty native function": best(nothing, repeats),
            "packing 16 addresses": best(lambda: packed.pack(*range(16)), repeats),
            "a product by torch.ops.aten.mm": best(lambda: torch.ops.aten.mm.default(a, b), repeats),
            "a product by torch.mm": best(lambda: torch.mm(a, b), repeats),
            "a product by torch.mm, into a tensor": best(lambda: torch.mm(a, b, out=c), repeats),
            "a product by the C interface, into a tensor": best(lambda: shim.mm(*handles), repeats),
        }
    for handle in handles:
        shim.free(handle)
    return times


def graph_back(module: Any, examples: Sequence[Any]) -> Callable[..., Any]:
    forward: Callable[..., Any] = module.forward
    return forward


def halves_back(module: Any, examples: Sequence[Any]) -> Callable[..., Any]:
    compiled: Callable[..., Any] = aot_module_simplified(
        module, examples, fw_compiler=lambda half, _: make_boxed_func(half.forward)
    )
    return compiled


def nothing_back(module: Any, examples: Sequence[Any]) -> Callable[..., Any]:
    """Halves that compute their results once, and then give them again."""

    def compiled(half: Any, _: Any) -> Callable[..., Any]:
        kept: list[Any] = []

        def again(args: list[Any]) -> list[Any]:
            if not kept:
                kept.extend(half(*args))
            args.clear()
            return [x.detach() if isinstance(x, Tensor) else x for x in kept]

        return make_boxed_func(lambda *args: again(list(args)))

    out: Callable[..., Any] = aot_module_simplified(module, examples, fw_compiler=compiled)
    return out


def frames(repeats: int) -> dict[str, float]:
    model = WithLoss(Layers(SAGEConv(WIDTH, WIDTH), SAGEConv(WIDTH, WIDTH)))
    x, y = torch.randn(NODES, WIDTH), torch.randint(WIDTH, (NODES,))

    def copied() -> Any:
        return copy.deepcopy(model)

    systems: Mapping[str, Callable[..., Tensor]] = {
        "eager": model,
        "the graph handed back": torch.compile(copied(), backend=graph_back, dynamic=True),
        "AOTAutograd's halves": torch.compile(copied(), backend=halves_back, dynamic=True),
        "halves that compute nothing": torch.compile(copied(), backend=nothing_back, dynamic=True),
        "Inductor": torch.compile(copied(), dynamic=True),
        "torch.compile(backend='graphweave')": torch.compile(copied(), backend="graphweave", dynamic=True),
        "graphweave.compile": graphweave.compile(copied()),
    }
    for system in systems.values():
        for _ in range(5):
            system(y, x, torch.randint(NODES, (2, EDGES))).backward()
    out: dict[str, float] = {}
    for kind, graphs in (("known", 1), ("new", 5 * repeats)):
        for name, system in systems.items():
            for part, us in halves_of(system, x, y, graphs, repeats).items():
                out[f"{name}, {kind} graph, {part}"] = us
    return out


def halves_of(system: Callable[..., Tensor], x: Tensor, y: Tensor, graphs: int, repeats: int) -> dict[str, float]:
    """Microseconds of a forward and of a backward, over calls that take so many graphs in turn."""
    indices = [torch.randint(NODES, (2, EDGES)) for _ in range(graphs)]
    ahead, back = [], []
    for i in range(5 * repeats):
        index = indices[i % graphs]
        begun = time.perf_counter()
        loss = system(y, x, index)
        half = time.perf_counter()
        loss.backward()
        ahead.append(half - begun)
        back.append(time.perf_counter() - half)
    parts = {"forward": sorted(ahead)[:repeats], "backward": sorted(back)[:repeats]}
    return {part: 1e6 * sum(times) / len(times) for part, times in parts.items()}


GROUPS = ("reading", "making", "calling", "frames")


def measure(group: str, repeats: int, threads: int) -> dict[str, float]:
    torch.set_num_threads(threads)
    if group == "frames":
        return frames(repeats)
    return {"reading": reading, "making": making, "calling": calling}[group](Shim(), repeats)


def show(results: Mapping[str, Any], options: Namespace) -> None:
    rows = [[group, what, f"{us:.2f}"] for group, times in results.items() for what, us in times.items()]
    ratio_table("the border", ["group", "what", "us"], rows)


def cases(options: Namespace) -> Iterator[Numbers]:
    for group in GROUPS:
        sizes = {"group": group, "repeats": options.repeats, "threads": options.threads}
        yield Numbers(group, measure, sizes, {"repeats": 5})


BENCH = Bench("bench.border", __doc__, cases, repeats=200, threads=1, show=show)


if __name__ == "__main__":
    raise SystemExit(run(BENCH))
