"""The page of an explanation: every kernel and every line of the user's is there, text is escaped, nothing is loaded,
and it is a function of plain data."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.nn import GATConv

import graphweave
from graphweave.core.errors import SettingsError
from graphweave.core.kernel_cost import KernelCost, Rates
from graphweave.frontends.dynamo.explain import Explanation
from graphweave.pages.explained.data import ExplainedData, ShownKernel, ShownPiece, ShownPlace
from graphweave.pages.explained.layers import FAR, draw
from graphweave.pages.explained.links import kernel_key, line_key
from graphweave.pages.explained.page import explained_page
from tests.pages.test_pages import HOSTILE, read
from tests.support import features, random_graph

pytestmark = pytest.mark.usefixtures("fresh_compiler")

NOTHING = ExplainedData("f", "", (), (), (), (), (), (), (), (), (), (), (), Rates(1e10, 1e11), ())
"""The data of a function of which nothing was compiled."""


class Attention(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = GATConv(8, 4, heads=2)

    def forward(self, x: Tensor, edge_index: Tensor, y: Tensor) -> Tensor:
        out = self.conv(x, edge_index)
        return F.cross_entropy(out, y)


def broken(x: Tensor, src: Tensor, dst: Tensor) -> Tensor:
    out = torch.zeros_like(x).index_add(0, dst, x[src])
    print("norm", float(out.norm()))
    return torch.zeros_like(x).index_add(0, dst, out.cumprod(0)[src])


@pytest.fixture(scope="module")
def attention() -> Explanation:
    torch._dynamo.reset()
    y = torch.arange(20) % 8
    return graphweave.explain(Attention(), features(20, 8), random_graph(20, 20, 90), y)


@pytest.fixture(scope="module")
def data(attention: Explanation) -> ExplainedData:
    return attention.data()


@pytest.fixture(scope="module")
def document(data: ExplainedData) -> str:
    return explained_page(data)


def test_the_document_is_well_formed_and_loads_nothing(document: str) -> None:
    found = read(document).found
    links = [a[key] or "" for _, a in found for key in ("href", "src", "srcset") if key in a]
    assert links and all(link.startswith(("#", "data:,")) for link in links)
    assert len(document) < 400_000


def test_links_lead_to_something_and_names_are_unique(document: str) -> None:
    found = read(document).found
    names = [a["id"] for _, a in found if "id" in a]
    assert len(names) == len(set(names))
    lines = {(a["href"] or "")[1:] for name, a in found if name == "a" and (a["href"] or "").startswith("#")}
    assert lines <= set(names)


def test_every_kernel_is_there_with_its_cost_and_its_code(attention: Explanation, document: str) -> None:
    reader = read(document)
    names = {a["id"] for _, a in reader.found if "id" in a}
    kernels = [(g, k) for g in attention.graphs for k in (*g.once, *g.kernels)]
    assert kernels
    for graph, kernel in kernels:
        assert kernel_key(f"{graph.name}-{kernel.name}") in names
        assert kernel.cost is not None and kernel.does in reader.text
        for line in kernel.text.splitlines():
            assert line in reader.text or line.strip().startswith("//"), line


def test_every_line_of_the_user_is_there_with_what_became_of_it(data: ExplainedData, document: str) -> None:
    (own,) = [source for source in data.sources if source.own]
    assert own.name == "Attention.forward" and own.lines[0].strip().startswith("def forward")
    names = {a["id"] for _, a in read(document).found if "id" in a}
    places = [f"{own.file}:{own.first + i}" for i in range(len(own.lines))]
    assert {line_key(place) for place in places} <= names
    for place in places[1:]:
        fates = [fate for fate in data.fates if fate.place == place]
        assert {key.split("_")[-2] for fate in fates for key in fate.kernels if fate.became == "kernel"} == {
            "forward-forward",
            "backward-backward",
        }
    assert {"once", "saved"} <= {fate.became for fate in data.fates if fate.place == places[1]}
    assert {c.place for c in data.eager} >= set(places[1:])
    assert any(source.file.startswith("torch_geometric/") and "GATConv" in source.name for source in data.sources)


def test_programs_show_where_each_value_went(data: ExplainedData) -> None:
    steps, captured, forward, backward = data.programs
    kernels = {kernel.key for kernel in data.kernels}
    assert {v.role for v in forward.values} >= {"given", "kernel", "index", "constant", "once"}
    for program in (captured, forward, backward):
        for i, value in enumerate(program.values):
            assert set(value.kernels) <= kernels and all(r < i for r in value.operands)
    assert forward.source == captured.key
    assert all(captured.values[r].place == v.place for v in forward.values for r in v.made_from if v.role == "kernel")
    products = [v for v in captured.values if v.kind == "matmul"]
    assert products and any(v.kernels for v in products)
    assert {key for v in steps.values for key in v.kernels} == {k.key for k in data.kernels if k.half != "once a graph"}
    after = [steps.values[r].kind for v in steps.values if v.kind.startswith("backward") for r in v.operands]
    assert any(kind.startswith("forward") for kind in after), "the backward reads what the forward has saved"


def test_programs_are_there_as_text(data: ExplainedData, document: str) -> None:
    text = read(document).text
    for program in data.programs:
        assert f"The program, {program.title}" in text
        assert all(f"%{i}: {v.type} = {v.operation}" in text for i, v in enumerate(program.values))


def test_what_runs_once_a_graph_is_listed(document: str) -> None:
    text = read(document).text
    assert "Values that are kept until the index tensors change" in text and "aten.index.Tensor" in text


def test_code_stands_next_to_its_lines(data: ExplainedData) -> None:
    kernel = next(k for k in data.kernels if k.half == "forward" and len(k.pieces) > 3)
    assert kernel.pieces[0].place == ShownPlace() and "#include" in kernel.pieces[0].code
    named = [piece for piece in kernel.pieces if piece.place.inner.startswith("torch_geometric/")]
    assert named and all(piece.text and piece.text not in piece.code for piece in named)
    assert {piece.place for piece in kernel.pieces[1:]} <= set(kernel.places) | {
        v.place for v in data.programs[2].values
    }


def test_memory_begins_with_nothing_and_hands_over_what_is_saved(attention: Explanation, data: ExplainedData) -> None:
    forward, backward = ([s for s in data.memory if s.half == half] for half in ("forward", "backward"))
    assert forward[0].after == 0 and all(s.during >= s.after >= 0 for s in data.memory)
    kept = sum(s.bytes for g in attention.graphs for s in g.keeps)
    assert kept / 2 <= backward[0].after <= kept  # indices are held in 32 bits
    assert backward[-1].after < backward[0].after


def test_memory_of_one_sum() -> None:
    """The result has 6 rows of 4 floats, and each value of a chain is freed after its last use."""
    src, dst = random_graph(6, 6, 12)

    def twice(x: Tensor, src: Tensor, dst: Tensor) -> Tensor:
        once = torch.zeros_like(x).index_add(0, dst, x[src]).cumprod(0)
        return torch.zeros_like(x).index_add(0, dst, once[src])

    memory = graphweave.explain(twice, features(6, 4), src, dst).data().memory
    work = [(s.during, s.after) for s in memory if s.step not in ("start", "end")]
    assert work == [(96, 96), (192, 96), (192, 96)]
    assert memory[0].after == 0 and memory[-1].after == 96


def test_a_break_and_what_is_left_to_pytorch_stand_at_their_lines(capsys: pytest.CaptureFixture[str]) -> None:
    src, dst = random_graph(9, 9, 30)
    data = graphweave.explain(broken, features(9, 4), src, dst).data()
    of = {fate.place.rpartition(":")[2]: fate.became for fate in data.fates if fate.became in ("break", "pytorch")}
    first = data.sources[0].first
    assert of == {str(first + 2): "break", str(first + 3): "pytorch"}
    assert {about for about, _ in data.troubles} == {"graph break", "left to PyTorch"}
    titles = [program.title for program in data.programs]
    assert "graph 2: inference, as it runs" in titles and len(titles) == len(set(titles))
    assert len({kernel.name for kernel in data.kernels}) == len(data.kernels)
    text = read(explained_page(data)).text
    assert "Once a graph" not in text
    assert "graph break: " in text and "left to PyTorch: " in text and "cumprod" in text


def test_lines_of_a_graph_that_is_left_as_it_is() -> None:
    def halved(x: Tensor, src: Tensor, dst: Tensor) -> Tensor:
        out = torch.zeros_like(x).index_add(0, dst, x[src])
        torch._dynamo.graph_break()
        return out / 2

    src, dst = random_graph(9, 9, 30)
    data = graphweave.explain(halved, features(9, 4), src, dst).data()
    (own,) = data.sources
    last = own.first + next(i for i, line in enumerate(own.lines) if "return out / 2" in line)
    left = [fate for fate in data.fates if "left to PyTorch as it is" in fate.text]
    assert [fate.place.rpartition(":")[2] for fate in left] == [str(last)]
    assert [p.title for p in data.programs if p.title.startswith("graph 2")] == [
        "graph 2: as captured, left to PyTorch"
    ]


def test_the_page_of_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    reader = read(explained_page(NOTHING))
    assert "Nothing was compiled" in reader.text and "No source file is known" in reader.text

    def plain(x: Tensor) -> Tensor:
        return x + 1

    text = read(explained_page(graphweave.explain(plain, torch.ones(3)).data())).text
    assert "what became of plain" in text


def test_a_kernel_without_operations_or_lines() -> None:
    kernel = ShownKernel(0, "g-k", "k", "forward", "rows of x: row by row", (), (), "", None)
    idle = replace(kernel, number=1, key="g-l", cost=KernelCost("l", 0, 0, 0, 0.0))
    text = read(explained_page(replace(NOTHING, kernels=(kernel, idle)))).text
    assert "rows of x: row by row" in text


def test_measured_times_stand_beside_bounds() -> None:
    cost = KernelCost("k", 10_000, 20_000, 40_000, 1e-6, 4e-6)
    kernel = ShownKernel(0, "g-k", "k", "forward", "rows of x: row by row", (), (), "", cost)
    document = explained_page(replace(NOTHING, kernels=(kernel,)))
    assert "25 %" in read(document).text and "kernel k0 measured" in document


def test_hostile_names_and_source_are_escaped(data: ExplainedData) -> None:
    place = ShownPlace(HOSTILE, HOSTILE)
    kernels = tuple(
        replace(k, name=HOSTILE, does=HOSTILE, pieces=(ShownPiece(place, HOSTILE, HOSTILE),)) for k in data.kernels
    )
    sources = tuple(replace(s, lines=(HOSTILE,) * len(s.lines), name=HOSTILE) for s in data.sources)
    programs = tuple(
        replace(p, title=HOSTILE, values=tuple(replace(v, kind=HOSTILE, operation=HOSTILE) for v in p.values))
        for p in data.programs
    )
    fates = tuple(replace(f, text=HOSTILE) for f in data.fates)
    hostile = replace(
        data, what=HOSTILE, where=HOSTILE, kernels=kernels, sources=sources, programs=programs, fates=fates
    )
    reader = read(explained_page(hostile))
    assert not [name for name, _ in reader.found if name == "img"]
    assert [name for name, _ in reader.found].count("script") == 2
    assert not any(key.startswith("on") for _, attributes in reader.found for key in attributes)


def test_saved_by_the_ending_of_the_name(attention: Explanation, data: ExplainedData, tmp_path: Path) -> None:
    page = attention.save(tmp_path / "out.html")
    assert page == tmp_path / "out.html" and page.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    written = json.loads(attention.save(str(tmp_path / "out.json")).read_text(encoding="utf-8"))
    assert written == json.loads(json.dumps(asdict(data)))
    assert attention.save(tmp_path / "out.txt").read_text(encoding="utf-8") == attention.text("all")
    with pytest.raises(SettingsError, match=r"out\.pdf.*Let it end in \.html, \.json or \.txt"):
        attention.save(tmp_path / "out.pdf")


def test_machine_paths_stay_out_of_the_page(document: str) -> None:
    assert "site-packages" not in document and not re.search(r"/(work|home|root|tmp)/\w", document)


@pytest.mark.parametrize("operands", [[], [[]], [[], [0], [1], [0, 2]], [[], [], [0, 1], [2], [2], [3, 4]]])
def test_a_drawing_leaves_room_for_every_node(operands: list[list[int]]) -> None:
    widths = [40 + 10 * i for i in range(len(operands))]
    drawing = draw(operands, widths)
    for i, read_ in enumerate(operands):
        assert all(drawing.layer[a] < drawing.layer[i] for a in read_)
        for j in range(i):
            if drawing.layer[i] == drawing.layer[j]:
                assert abs(drawing.x[i] - drawing.x[j]) >= (widths[i] + widths[j]) / 2
        assert drawing.x[i] - widths[i] / 2 >= 0 and drawing.x[i] + widths[i] / 2 <= drawing.width + 1
    assert {edge[:2] for edge in drawing.edges} == {(a, i) for i, read_ in enumerate(operands) for a in read_}


def test_long_edges_are_not_routed() -> None:
    chain = [[], *([i] for i in range(FAR + 2))]
    drawing = draw([*chain, [0, FAR + 2]], [50] * (FAR + 4))
    assert drawing.far == ((0, FAR + 3),) and len(drawing.edges) == FAR + 3
