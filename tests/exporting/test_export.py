"""`graphweave.export`: models as libraries that C programs call."""

from __future__ import annotations

import ctypes
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.nn import GATConv, GCNConv, TopKPooling, global_max_pool

import graphweave as gw
from graphweave.core.errors import ExportError
from graphweave.exporting.library import LoadedModel, _Error
from graphweave.exporting.weights import write_weights

CLIENTS = Path(__file__).parents[2] / "examples" / "export"
WIDTH = 5


class Model(nn.Module):
    """Two layers with self-loops of data-dependent number, an attention, and two results."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = GCNConv(WIDTH, 7), GATConv(7, 3, heads=2, add_self_loops=False)
        self.register_buffer("scale", torch.tensor([0.5, -2.0, 1.5, 0.25, 3.0, -0.5]))

    def forward(self, x: Tensor, edge_index: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        h = self.first(x, edge_index).tanh()
        out = self.second(h, edge_index)
        return out, {"scaled": out * self.scale}


def example(nodes: int, edges: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    numbers = torch.Generator().manual_seed(seed)
    index = torch.randint(max(nodes, 1), (2, edges), generator=numbers)
    return torch.randn(nodes, WIDTH, generator=numbers), index


def eager(model: nn.Module, *given: Tensor) -> list[Tensor]:
    with torch.no_grad():
        out, more = model(*given)
    return [out, more["scaled"]]


@pytest.fixture(scope="module")
def model() -> nn.Module:
    torch.manual_seed(3)
    return Model().eval()


@pytest.fixture(scope="module")
def folder(model: nn.Module, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("exported") / "model"
    gw.export(model, example(30, 90), path)
    yield path


@pytest.fixture(scope="module")
def library(folder: Path) -> LoadedModel:
    return LoadedModel(folder)


@pytest.mark.parametrize(
    ("nodes", "edges"), [(30, 90), (1, 0), (1, 4), (2, 1), (9, 0), (0, 0), (64, 64), (700, 30_000)]
)
def test_a_library_gives_what_the_model_gives(model: nn.Module, library: LoadedModel, nodes: int, edges: int) -> None:
    given = example(nodes, edges, seed=nodes + edges)
    for got, want in zip(library(*given), eager(model, *given), strict=True):
        assert got.shape == want.shape and got.dtype == want.dtype
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


def test_a_hub_has_its_rows_divided(model: nn.Module, library: LoadedModel) -> None:
    x, index = example(60, 40_000)
    index[1] = 7
    for got, want in zip(library(x, index), eager(model, x, index), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


def test_strides_and_narrow_indices_are_read_as_they_lie(model: nn.Module, library: LoadedModel) -> None:
    x, index = example(40, 100)
    want = library(x, index)
    wide = torch.empty(WIDTH, 80).t()[::2]
    wide.copy_(x)
    for got in (library(wide, index), library(x, index.t().contiguous().t())):
        assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


def test_threads_change_no_bit(folder: Path, library: LoadedModel) -> None:
    given = example(3000, 60_000)
    want, threads = library(*given), LoadedModel(folder, threads=3)
    for _ in range(3):
        assert all(torch.equal(a, b) for a, b in zip(threads(*given), want, strict=True))


def test_many_threads_run_one_model(library: LoadedModel) -> None:
    cases = [example(20 + i, 50 * i, seed=i) for i in range(8)]
    want = [library(*given) for given in cases]
    with ThreadPoolExecutor(8) as pool:
        for _ in range(4):
            got = list(pool.map(lambda given: library(*given), cases))
            assert all(torch.equal(a, b) for g, w in zip(got, want, strict=True) for a, b in zip(g, w, strict=True))


def test_a_prepared_graph_is_not_looked_at_again(library: LoadedModel) -> None:
    x, index = example(30, 90)
    want, graph = library(x, index), library.prepared(x, index)
    index.fill_(10**6)  # no index at all: the graph is not read again
    assert all(torch.equal(a, b) for a, b in zip(graph(x, index), want, strict=True))
    other = torch.randn(30, WIDTH)
    assert not torch.equal(graph(other, index)[0], want[0])
    with pytest.raises(ExportError, match="the sizes are not those of the graph"):
        graph(torch.randn(31, WIDTH), index)


@pytest.mark.parametrize("row", [0, 1])
@pytest.mark.parametrize("value", [30, -1, 2**40, -(2**62)])
def test_an_index_out_of_range_is_refused(library: LoadedModel, row: int, value: int) -> None:
    x, index = example(30, 90)
    index[row, 17] = value
    with pytest.raises(IndexError, match=rf"edge_index.* holds {value} at position 17, expected 0"):
        library(x, index)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ((torch.zeros(4, WIDTH).double(), torch.zeros(2, 0).long()), "x: expected float32 with 2 dims .got float64"),
        ((torch.zeros(4), torch.zeros(2, 0).long()), "x: expected float32 with 2 dims .got float32 with 1"),
        ((torch.zeros(4, WIDTH + 1), torch.zeros(2, 0).long()), "x: expected 5 in dim 1 .got 6"),
        ((torch.zeros(4, WIDTH), torch.zeros(3, 0).long()), "edge_index: expected 2 in dim 0 .got 3"),
        ((torch.zeros(4, WIDTH), torch.zeros(2, 0)), "edge_index: expected int64 with 2 dims .got float32"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(library: LoadedModel, given: tuple[Tensor, ...], message: str) -> None:
    with pytest.raises(ExportError, match=message):
        library(*given)


def test_weights_may_be_others(model: nn.Module, folder: Path, tmp_path: Path) -> None:
    library, given = LoadedModel(folder), example(30, 90)
    other = {name: value * 1.5 for name, value in model.state_dict().items()}
    write_weights(tmp_path / "other.safetensors", other | {"unused": torch.ones(3)})
    library.load(tmp_path / "other.safetensors")
    changed = Model().eval()
    changed.load_state_dict(other)
    torch.testing.assert_close(library(*given)[0], eager(changed, *given)[0], rtol=1e-4, atol=1e-4)


def damaged(content: bytes) -> Iterator[tuple[str, bytes]]:
    yield "empty", b""
    yield "short", content[:7]
    yield "header", content[:40]
    yield "cut", content[:-8]
    yield "length", (2**63 - 1).to_bytes(8, "little") + content[8:]
    yield "json", content.replace(b'"dtype"', b'"xtype"', 1)
    yield "offsets", content.replace(b'"data_offsets":[0', b'"data_offsets":[8', 1)


def test_wrong_weights_are_refused_and_the_old_ones_stay(folder: Path, tmp_path: Path) -> None:
    library, given = LoadedModel(folder), example(30, 90)
    want = library(*given)
    for name, content in damaged((folder / "weights.safetensors").read_bytes()):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ExportError, match=name):
            library.load(tmp_path / name)
    write_weights(tmp_path / "shape", {"first.bias": torch.zeros(8)})
    with pytest.raises(ExportError, match=r"weight first\.bias has another dtype or shape"):
        library.load(tmp_path / "shape")
    with pytest.raises(ExportError, match="cannot be read"):
        library.load(tmp_path / "none")
    assert all(torch.equal(a, b) for a, b in zip(library(*given), want, strict=True))


def test_the_manifest_says_what_there_is(folder: Path) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    first, second = manifest["inputs"]
    assert (first["name"], first["dtype"], first["sizes"][1]) == ("x", "float32", WIDTH)
    assert (second["name"], second["dtype"], second["sizes"][0]) == ("edge_index", "int64", 2)
    assert [o["name"] for o in manifest["outputs"]] == ["output[0]", "output[1]['scaled']"]
    assert {w["name"] for w in manifest["weights"]} == set(Model().state_dict())
    given = LoadedModel(folder)(*example(30, 90))
    assert manifest["outputs"][0]["example"]["sum"] == float(given[0].double().sum())


def test_a_library_needs_nothing_of_python_torch_and_cxx(folder: Path) -> None:
    assert (folder / "model.so").stat().st_size < 2 << 20
    needed = subprocess.run(["ldd", folder / "model.so"], capture_output=True, text=True, check=True).stdout
    names = {line.split()[0].split(".")[0].split("/")[-1] for line in needed.splitlines()}
    assert names <= {"linux-vdso", "libc", "libm", "libpthread", "ld-linux-x86-64", "libgcc_s", "ld-linux-aarch64"}


def ring(model: nn.Module, nodes: int) -> Tensor:
    x = ((torch.arange(nodes * WIDTH) % 7) - 3).float().reshape(nodes, WIDTH)
    index = torch.stack([torch.arange(nodes), (torch.arange(nodes) + 1) % nodes])
    return eager(model, x, index)[0]


class OneResult(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.model(x, edge_index)[0]


@pytest.fixture(scope="module")
def one_result(model: nn.Module, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("exported") / "one"
    gw.export(OneResult(model), example(30, 90), path)
    return path


@pytest.mark.parametrize("language", ["c", "c++", "python", "rust"])
def test_clients_in_other_languages_get_the_numbers(
    model: nn.Module, one_result: Path, language: str, tmp_path: Path
) -> None:
    program = tmp_path / "client"
    built = {
        "c": ["gcc", "-Wall", "-Werror", "-std=c11", str(CLIENTS / "client.c")],
        "c++": ["g++", "-Wall", "-x", "c++", "-fpermissive", "-w", str(CLIENTS / "client.c"), "-x", "none"],
        "rust": ["rustc", str(CLIENTS / "client.rs"), "-C", f"link-arg=-Wl,-rpath,{one_result}", "-C",
                 f"link-arg={one_result / 'model.so'}", "-o", str(program)],
    }.get(language)  # fmt: skip
    run = [str(program), str(one_result / "weights.safetensors"), "11", str(WIDTH)]
    if built is None:
        run = [sys.executable, str(CLIENTS / "client.py"), str(one_result), "11", str(WIDTH)]
    elif shutil.which(built[0]) is None:
        pytest.skip(f"{built[0]} is not installed")
    else:
        more = [str(one_result / "model.so"), f"-Wl,-rpath,{one_result}", f"-I{one_result}", "-o", str(program)]
        subprocess.run(built if language == "rust" else [*built, *more], check=True, cwd=tmp_path)
    said = subprocess.run(run, capture_output=True, text=True, check=True).stdout
    got = torch.tensor([float(line) for line in said.split()]).reshape(11, 6)
    torch.testing.assert_close(got, ring(model, 11), rtol=1e-5, atol=1e-5)


def compile_with_sanitizers(sources: Path, program: Path) -> None:
    driver = Path(__file__).parents[1] / "native" / "hostile_model.c"
    flags = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g", "-O1", "-DGW_MEMORY_OF_CXX"]
    files = [str(sources / "model.cpp"), "-x", "c", "-w", str(driver)]
    subprocess.run(["g++", "-std=c++17", *flags, f"-I{sources}", *files, "-lpthread", "-o", str(program)], check=True)


@pytest.mark.slow
@pytest.mark.sanitize
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_hostile_arguments_read_nothing_out_of_bounds(folder: Path, tmp_path: Path) -> None:
    compile_with_sanitizers(folder / "sources", tmp_path / "hostile")
    run = [str(tmp_path / "hostile"), str(folder / "weights.safetensors"), str(WIDTH), "3000"]
    done = subprocess.run(run, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    well, refused = map(int, done.stdout.split())
    assert well > 500 and refused > 500


@pytest.mark.slow
def test_the_makefile_builds_the_library_again(library: LoadedModel, folder: Path, tmp_path: Path) -> None:
    copied = shutil.copytree(folder, tmp_path / "again")
    (copied / "model.so").unlink()
    subprocess.run(["make", "-C", str(copied / "sources"), "ARCH=x86-64-v3"], check=True, capture_output=True)
    given = example(30, 90)
    for got, want in zip(LoadedModel(copied)(*given), library(*given), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6)


def test_a_call_may_be_made_again_and_again_on_the_same_memory(library: LoadedModel) -> None:
    given = example(30, 90)
    want = library(*given)
    outputs = [torch.empty_like(one) for one in want]
    for graph in (None, library.prepared(*given)):
        call = library.bound(given, outputs, graph)
        for _ in range(2):
            for one in outputs:
                one.fill_(7)
            call()
            assert all(torch.equal(a, b) for a, b in zip(outputs, want, strict=True))
    with pytest.raises(ExportError, match=r"output\[0\] needs 720 bytes .got 4.. Give that many"):
        library.bound(given, [torch.empty(1), outputs[1]])()


class EmptyApart(nn.Module):
    """Sums over edges, whose index is read row by row, and a case of its own for no nodes."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        src, dst = edge_index[0], edge_index[1]
        if x.size(0) == 0:
            return x + 1
        return x.index_add(0, dst, x[src])


def test_a_form_for_no_rows_keeps_the_sizes_that_the_model_needs(tmp_path: Path) -> None:
    library = gw.export(EmptyApart(), example(6, 12), tmp_path / "model").load()
    for nodes, edges in ((6, 12), (3, 1), (4, 0), (1, 2), (0, 0)):
        given = example(nodes, edges)
        torch.testing.assert_close(library(*given)[0], EmptyApart()(*given))


class Masked(nn.Module):
    """Sums over the edges of each type, whose places are read by both ends."""

    def forward(self, x: Tensor, edge_index: Tensor, kind: Tensor) -> Tensor:
        parts = [edge_index[:, kind == one] for one in range(3)]
        return torch.stack([x.index_add(0, dst, x[src]) for src, dst in parts])


def test_the_places_of_a_mask_are_found_once(tmp_path: Path) -> None:
    kind = torch.arange(40) % 3
    exported = gw.export(Masked(), (*example(9, 40), kind), tmp_path / "model")
    source = (exported.folder / "sources/model.cpp").read_text()
    assert 3 <= source.count("= places_of(run, ") <= 3 * source.count("void follow(")
    library = exported.load()
    for nodes, edges in ((9, 40), (1, 40), (5, 2), (4, 0)):
        given = *example(nodes, edges), kind[:edges]
        torch.testing.assert_close(library(*given)[0], Masked()(*given))
    x, index = example(9, 40)
    index[1, 7] = 9
    with pytest.raises(IndexError, match="holds 9 at position"):
        library(x, index, kind)


def test_a_header_of_another_major_version_is_refused(folder: Path) -> None:
    native, model, error = ctypes.CDLL(str(folder / "model.so")), ctypes.c_void_p(1), _Error()
    weights = str(folder / "weights.safetensors").encode()
    assert native.gw_model_open_version(2, weights, ctypes.byref(model), ctypes.byref(error)) == 6
    assert not model and b"header is of another major version" in error.message
    assert native.gw_model_open_version(2, weights, ctypes.byref(model), None) == 6


# ---------------------------------------------------------------- rows in order


class Ordered(nn.Module):
    """The best nodes of each graph, running sums over them from both ends, and the rows of a mask written anew."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = TopKPooling(WIDTH, 0.5)

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> tuple[Tensor, ...]:
        best, edges, _, chosen, place, _ = self.pool(x, edge_index, None, batch)
        return best.cumsum(0), edges, chosen, place, best.flip(0).cumsum(0), place.cumsum(0)


def test_rows_that_are_sorted_and_chosen_leave_python(tmp_path: Path) -> None:
    torch.manual_seed(1)
    module = Ordered().eval()
    library = gw.export(module, (*example(20, 60), torch.arange(20) // 6), tmp_path / "model").load()
    for nodes, edges, graphs in ((20, 60, 4), (1, 3, 1), (40, 0, 3), (2_000, 9_000, 50)):
        x, edge_index = example(nodes, edges, seed=nodes)
        given = x, edge_index, torch.arange(nodes) * graphs // nodes
        with torch.no_grad():
            want = module(*given)
        for got, expected in zip(library(*given), want, strict=True):
            torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)


class Written(nn.Module):
    """One number written to the rows of a mask."""

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return x.index_put((mask,), torch.full((), 2.5))


def test_a_number_is_written_to_some_rows_or_none(tmp_path: Path) -> None:
    library = gw.export(Written(), (torch.randn(6), torch.arange(6) % 2 == 0), tmp_path / "model").load()
    for rows in (6, 1, 0):
        x, mask = torch.randn(rows), torch.arange(rows) % 2 == 0
        for chosen in (mask, torch.zeros_like(mask)):
            torch.testing.assert_close(library(x, chosen)[0], Written()(x, chosen))


# ---------------------------------------------------------------- random numbers


class Noisy(nn.Module):
    """Nodes with dropout, and normal numbers."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return torch.nn.functional.dropout(x, 0.25, training=True), torch.randn_like(x)


def test_random_numbers_follow_a_seed_that_is_an_input(tmp_path: Path) -> None:
    exported = gw.export(Noisy(), (torch.ones(9, 4),), tmp_path / "model")
    assert exported.manifest["inputs"][1] == {"name": "seed", "dtype": "int64", "sizes": []}
    library, x = exported.load(), torch.ones(20_000, 4)
    first, again, other = (library(x, torch.tensor(seed)) for seed in (3, 3, 4))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(first, other, strict=True))
    for dropped, normal in (first, other):
        assert set(dropped.unique().tolist()) == {0.0, torch.tensor(1 / 0.75).item()}
        assert abs((dropped == 0).double().mean() - 0.25) < 0.01
        assert abs(normal.mean()) < 0.02 and abs(normal.std() - 1) < 0.02 and abs((normal**4).mean() - 3) < 0.15
    with pytest.raises(ExportError, match="seed: expected int64 with 0 dims"):
        library(x, torch.tensor([3]))


# ---------------------------------------------------------------- what cannot leave


class Drawing(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + torch.randint(9, x.shape)


class Printing(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        print("seen")
        return x.cumsum(0)


class Sorted(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.sort(0).values


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (Drawing(), r"only PyTorch computes aten\.randint.*test_export\.py"),
        (Printing(), "cannot be captured as one graph"),
        (Sorted(), r"only PyTorch computes aten\.sort.* \(tests/exporting/test_export\.py:\d+"),
    ],
)
def test_what_cannot_leave_is_named(module: nn.Module, message: str, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=message):
        gw.export(module, (torch.randn(4, 3),), tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_arguments_that_are_no_tensors_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=r"size: expected a dense tensor on the CPU .got int"):
        gw.export(global_max_pool, {"x": torch.randn(4, 3), "batch": torch.zeros(4).long(), "size": 1}, tmp_path)


def test_a_result_that_is_no_tensor_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=r"output\[1\]: expected a tensor that the model computes .got int"):
        gw.export(lambda x: (x * 2, 3), (torch.randn(4, 3),), tmp_path)
