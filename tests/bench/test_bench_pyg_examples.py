"""`bench.pyg_examples`: where the changed line stands, what stand-ins of data sets look like, and a whole program."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch_geometric import datasets
from torch_geometric.data import Dataset
from torch_geometric.io import fs

from bench import pyg_examples, pyg_examples_data
from bench.common import ROOT
from bench.pyg_examples_cases import missing_packages, needs_lending, programs, reason
from bench.pyg_examples_text import NoPlace, change, with_lending

PROGRAM = """\
import torch
import torch.nn.functional as F
from torch_geometric.datasets import Planetoid
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GCNConv
dataset = Planetoid("nowhere", "Cora")
data = dataset[0]
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = GCNConv(dataset.num_features, dataset.num_classes)
    def forward(self, x, edge_index):
        return self.conv(F.dropout(x, training=self.training), edge_index)
model = Net()
model, data = model.to("cpu"), data.to("cpu")
optimizer = torch.optim.Adam(model.parameters())
loss_op = torch.nn.CrossEntropyLoss()
def train():
    optimizer.zero_grad()
    loss = loss_op(model(data.x, data.edge_index), data.y)
    loss.backward()
    optimizer.step()
for epoch in range(10**6):
    train()
"""

METHOD = """\
model = GAE(Encoder())
model = model.to(device)
def train():
    optimizer.zero_grad()
    z = model.encode(x, edge_index)
    model.recon_loss(z, edge_index).backward()
"""

BRANCHES = """\
def run():
    if a:
        model = A()
    else:
        model = B()
    optimizer.zero_grad()
    model(x).sum().backward()
if __name__ == '__main__':
    run()
"""

SCRIPTED = """\
model = Net()
model = torch.jit.script(
    model)
def train():
    optimizer.zero_grad()
    model(x).sum().backward()
"""


def test_the_line_follows_the_last_statement_that_makes_the_model() -> None:
    changed = change(PROGRAM)
    assert changed.line == "model = graphweave.compile(model)"
    assert changed.unchanged == PROGRAM
    lines = changed.changed.splitlines()
    assert lines[changed.number - 1] == changed.line
    assert lines[changed.number - 2].startswith("model, data = ")
    assert [line for line in lines if line != changed.line] == PROGRAM.splitlines()


def test_an_attribute_of_the_model_makes_no_model() -> None:
    """PyG's mem_pool.py sets attributes inside its training function, where the line would make the name a local."""
    program = PROGRAM + "\n\ndef later():\n    model.weight.requires_grad = True\n"
    assert change(program).number == change(PROGRAM).number


def test_a_method_that_is_trained_is_compiled() -> None:
    assert change(METHOD).line == "model.encode = graphweave.compile(model.encode)"
    assert change(METHOD).changed.splitlines()[2] == "model.encode = graphweave.compile(model.encode)"


def test_the_line_follows_all_branches_with_their_indentation() -> None:
    lines = change(BRANCHES).changed.splitlines()
    assert lines[5] == "    model = graphweave.compile(model)"
    assert lines[4] == "        model = B()"


def test_another_compiler_is_replaced_and_left_out_for_eager_mode() -> None:
    changed = change(SCRIPTED)
    assert changed.replaced == "model = torch.jit.script(model)"
    assert changed.changed.splitlines()[1] == "model = graphweave.compile(model)"
    assert "jit" not in changed.changed
    assert "jit" not in changed.unchanged
    assert len(changed.changed.splitlines()) == len(changed.unchanged.splitlines()) == len(SCRIPTED.splitlines())


def test_what_is_compiled_may_be_named() -> None:
    assert change(PROGRAM, "model.conv").line == "model.conv = graphweave.compile(model.conv)"
    with pytest.raises(NoPlace, match="no statement assigns `gnn`"):
        change(PROGRAM, "gnn")
    with pytest.raises(NoPlace, match="no function"):
        change("x = 1\n")


def test_what_is_not_installed_is_lent_before_pyg_is_imported() -> None:
    text, line = with_lending(PROGRAM)
    assert line == "import graphweave.pyg"
    assert text.splitlines()[2] == line


def test_programs_are_sorted_by_what_they_need(tmp_path: Path) -> None:
    examples = {
        "fits.py": PROGRAM,
        "multi_gpu/many.py": PROGRAM,
        "lacks.py": "import no_such_package\n" + PROGRAM,
        "sampled.py": PROGRAM.replace("DataLoader", "NeighborLoader"),
    }
    for name, text in examples.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert programs(tmp_path) == sorted(examples)
    assert reason(tmp_path, "fits.py") is None
    assert reason(tmp_path, "multi_gpu/many.py") == "several GPUs or machines"
    assert reason(tmp_path, "lacks.py") == "needs `no_such_package`, not installed"
    assert missing_packages(tmp_path / "fits.py") == []
    assert [needs_lending(tmp_path / name) for name in ("fits.py", "sampled.py")] == [False, True]


@pytest.fixture
def stand_ins(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    for owner, name in ((fs, "torch_load"), (Dataset, "_download"), (Dataset, "_process")):
        monkeypatch.setattr(owner, name, getattr(owner, name))  # so that it comes back
    pyg_examples_data.install()


def test_stand_ins_have_the_form_of_the_data_sets(stand_ins: None) -> None:
    before = torch.get_rng_state()
    cora = datasets.Planetoid("nowhere", "Cora")
    assert (cora.num_features, cora.num_classes, cora[0].num_nodes) == (1433, 7, 2708)
    assert [int(cora[0][f"{name}_mask"].sum()) for name in ("train", "val", "test")] == [140, 500, 1000]
    assert cora[0].is_undirected()
    assert Path(cora.processed_dir) == Path("Planetoid/Cora/processed").resolve() and Path(cora.processed_dir).is_dir()
    mutag = datasets.TUDataset("nowhere", "MUTAG")
    assert (len(mutag), mutag.num_features, mutag.num_classes) == (188, 7, 2)
    assert datasets.TUDataset("nowhere", "PROTEINS").num_features == 3
    assert datasets.TUDataset("nowhere", "PROTEINS", use_node_attr=True).num_features == 4
    aifb = datasets.Entities("nowhere", "AIFB")
    assert (aifb.num_relations, aifb.num_classes, aifb[0].num_nodes) == (90, 4, 8285)
    movies = datasets.MovieLens("nowhere")[0]
    assert movies["movie"].x.shape == (9742, 404)
    assert movies["user", "rates", "movie"].edge_label.max() == 5
    mag = datasets.OGB_MAG("nowhere", preprocess="metapath2vec")
    assert mag.num_classes == 349
    assert all(mag[0][kind].x.size(1) == 128 for kind in mag[0].node_types)
    assert torch.equal(before, torch.get_rng_state())


def test_stand_ins_are_the_same_each_time_and_other_in_each_part(stand_ins: None) -> None:
    one, again = (datasets.ZINC("nowhere", subset=True, split="val") for _ in range(2))
    other = datasets.ZINC("nowhere", subset=True, split="test")
    assert torch.equal(one[0].x, again[0].x)
    assert one[0].x.shape != other[0].x.shape or not torch.equal(one[0].x, other[0].x)


def test_a_filter_and_a_transformation_of_the_program_are_applied(stand_ins: None) -> None:
    def small(data: Any) -> bool:
        return data.num_nodes < 18

    def marked(data: Any) -> Any:
        data.mark = data.num_nodes
        return data

    found = datasets.TUDataset("nowhere", "MUTAG", pre_filter=small, pre_transform=marked)
    assert 0 < len(found) < 188
    assert all(one.mark == one.num_nodes < 18 for one in found)


def test_every_data_set_of_a_stand_in_is_pygs() -> None:
    assert all(hasattr(datasets, name) for name in pyg_examples_data.STAND_INS)
    assert set(pyg_examples_data.SMALLER) <= set(pyg_examples_data.STAND_INS)


@pytest.mark.slow
def test_the_page_says_a_reason_once_with_its_count() -> None:
    why = "loss of a compiled Net runs eagerly, since of a module its forward is compiled. Compile it, too"
    work = {
        "kernels": 3, "calls": 9, "breaks": 0, "eager_graphs": [why] * 40,
        "on_edges": [f"aten.op{i}.default: no kernel computes it ({i} times)" for i in range(2, 10)],
        "left": ["aten.mm.default: " + "a long reason " * 20, "aten.mm.out: " + "a long reason " * 20],
    }  # fmt: skip
    run = {"median": 0.01, "work": work}
    cells = pyg_examples.row(
        "net.py", {"status": "ok", "line": "model = 1", "ratio": 1.0, "runs": {"eager": run, "graphweave": run}}
    )
    whole, on_edges, left = cells[-1].split("<br>")
    assert whole == f"**whole graph**: {why} (40 times)"
    names = ", ".join(f"op{i} ({i} times)" for i in range(9, 3, -1))
    assert on_edges == f"on edges, no kernel computes it: {names}, 2 more"
    assert left.startswith("a long reason a long reason") and left.endswith("...: mm (2 times)") and len(left) < 200


def test_a_program_with_the_line_has_eagers_losses_and_gradients(tmp_path: Path) -> None:
    (tmp_path / "examples").mkdir()
    (tmp_path / "examples" / "tiny.py").write_text(PROGRAM)
    out, page = tmp_path / "out.json", tmp_path / "page.md"
    command = [
        sys.executable,
        "-m",
        "bench.pyg_examples",
        "--pyg",
        str(tmp_path),
        "--out",
        str(out),
        "--markdown",
        str(page),
    ]
    done = subprocess.run([*command, "--step-seconds", "0.1"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "| tiny.py | ok |" in page.read_text()
    assert pyg_examples.json.loads(out.read_text())["results"]["tiny.py"]["error"] < pyg_examples.TOLERANCE
