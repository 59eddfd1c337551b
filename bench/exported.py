"""Latency of one call: an exported library against eager PyTorch, torch.compile, AOTInductor and the call in process.

    python -m bench.exported [--cases NAME ...] [--calls 2000] [--threads 1] [--out FILE]

- `gat-cora`: two layers of GAT on a graph of Cora's size (2,708 nodes, 10,556 edges, 1,433 features, 8 heads of 8).
- `gin-molecule`: five layers of GIN with batch norm and mean pooling on a molecule of 21 atoms and 44 edges.
- `relational`: two layers of RGCN on 1,000 nodes and 6,000 edges of 4 relations.

The library is called by its C interface through ctypes, with arguments and memory for the result made once, as a host
code would call it: `library` on a graph that it has not seen, `library, graph kept` on one that was prepared. All
systems have the same number of threads. A round calls each of them once; medians and 99th percentiles are of all
rounds. AOTInductor compiles for the sizes at hand, which is its best setting.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping
from statistics import median, quantiles
from typing import Any

import torch
import torch_geometric.nn as pyg
from torch import Tensor, nn

import graphweave
from bench.case import Bench, Numbers
from bench.common import ratio_table
from bench.runner import run
from bench.workloads import Layers
from graphweave.exporting.library import LoadedModel


class Gin(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.model, self.head = pyg.GIN(16, 64, 5, norm="batch_norm"), nn.Linear(64, 1)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.head(self.model(x, edge_index).mean(0, keepdim=True))


def _molecule() -> tuple[Tensor, Tensor]:
    """A ring of 21 atoms with a bond across, in both directions."""
    ring = torch.stack([torch.arange(21), (torch.arange(21) + 1) % 21])
    bonds = torch.cat([ring, torch.tensor([[0], [10]])], 1)
    return torch.randn(21, 16), torch.cat([bonds, bonds.flip(0)], 1)


CASES: dict[str, tuple[Callable[[], nn.Module], Callable[[], tuple[Tensor, ...]]]] = {
    "gat-cora": (
        lambda: Layers(pyg.GATConv(1433, 8, heads=8), pyg.GATConv(64, 7)),
        lambda: (torch.rand(2708, 1433), torch.randint(2708, (2, 10_556))),
    ),
    "gin-molecule": (Gin, _molecule),
    "relational": (
        lambda: Layers(pyg.RGCNConv(32, 32, 4), pyg.RGCNConv(32, 8, 4)),
        lambda: (torch.randn(1000, 32), torch.randint(1000, (2, 6000)), torch.randint(4, (6000,))),
    ),
}


def c_call(model: LoadedModel, given: tuple[Tensor, ...], out: Tensor, graph: Any = None) -> Callable[[], Tensor]:
    """A call of the C interface with memory that is made once."""
    call = model.bound(given, [out], graph)

    def run() -> Tensor:
        call()
        return out

    return run


def systems(model: nn.Module, given: tuple[Tensor, ...], folder: str, threads: int) -> dict[str, Callable[[], Tensor]]:
    compiled = graphweave.compile(model)
    inductor = torch.compile(model)
    found: dict[str, Callable[[], Tensor]] = {
        "eager": lambda: model(*given),
        "graphweave in process": lambda: compiled(*given),
        "torch.compile": lambda: inductor(*given),
    }
    try:
        package = torch._inductor.aoti_compile_and_package(
            torch.export.export(model, given), package_path=os.path.join(folder, "model.pt2")
        )
        loaded = torch._inductor.aoti_load_package(package)
        found["AOTInductor"] = lambda: loaded(*given)
    except Exception as error:  # it cannot capture every model
        print(f"AOTInductor: {type(error).__name__}: {str(error).splitlines()[0]}")
    exported = graphweave.export(model, given, os.path.join(folder, "exported"))
    library, out = exported.load(threads), model(*given)
    found["library"] = c_call(library, given, torch.empty_like(out))
    found["library, graph kept"] = c_call(library, given, torch.empty_like(out), library.prepared(*given))
    return found


def measure(name: str, calls: int, threads: int) -> dict[str, Any]:
    torch.set_num_threads(threads)
    make, inputs = CASES[name]
    torch.manual_seed(0)
    model, given = make().eval(), inputs()
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        found = systems(model, given, folder, threads)
        want = found["eager"]()
        for system, call in found.items():
            for _ in range(20):
                got = call()
            error = float((got - want).abs().max() / want.abs().max())
            assert error < 1e-4, f"{name}: {system} differs from eager by {error:.1e}"
        times: dict[str, list[float]] = {system: [] for system in found}
        for _ in range(calls):
            for system, call in found.items():
                start = time.perf_counter()
                call()
                times[system].append(time.perf_counter() - start)
        size = os.path.getsize(os.path.join(folder, "exported", "model.so"))
        opened = _opening(os.path.join(folder, "exported"))
    told = {system: {"median": median(t), "p99": quantiles(t, n=100)[98]} for system, t in times.items()}
    return {"systems": told, "library_bytes": size, "open_seconds": opened}


def _opening(folder: str) -> float:
    """Seconds to load and open a library that the system has in its file cache."""
    spent = []
    for i in range(9):
        copy = f"{folder}/copy{i}.so"  # a library of the same name would be taken for the one that is there
        shutil.copy(f"{folder}/model.so", copy)
        start = time.perf_counter()
        native, model, error = ctypes.CDLL(copy), ctypes.c_void_p(), ctypes.create_string_buffer(1024)
        native.gw_model_open_version(1, f"{folder}/weights.safetensors".encode(), ctypes.byref(model), error)
        spent.append(time.perf_counter() - start)
    return median(spent)


def show(results: Mapping[str, Any], options: Namespace) -> None:
    rows = []
    for name, found in results.items():
        if "systems" not in found:
            rows.append([name, found["status"]])
            continue
        eager = found["systems"]["eager"]["median"]
        for system, t in found["systems"].items():
            times = f"{t['median'] * 1e6:.1f}", f"{t['p99'] * 1e6:.1f}", f"{t['median'] / eager:.3f}"
            rows.append([name, system, *times])
        kib, opens = found["library_bytes"] / 1024, found["open_seconds"] * 1e3
        print(f"{name}: library {kib:.0f} KiB, opens in {opens:.2f} ms")
    title = f"one call, microseconds, threads: {options.threads}"
    ratio_table(title, ("model", "system", "median", "p99", "of eager"), rows)


def cases(options: Namespace) -> Iterator[Numbers]:
    for name in CASES:
        yield Numbers(name, measure, {"name": name, "calls": options.calls, "threads": options.threads}, {"calls": 5})


BENCH = Bench("bench.exported", __doc__, cases, {"calls": 2000}, threads=1, show=show)


if __name__ == "__main__":
    raise SystemExit(run(BENCH))
