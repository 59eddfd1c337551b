"""`graphweave explain SCRIPT` and `graphweave profile SCRIPT`: the user's program runs as by Python itself, and one
page tells of all that it compiled."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from graphweave.cli.main import main

_COMPILED = """\
import sys, torch, graphweave, neighbour

@graphweave.compile
def layer(x, w, edge_index):
    h = torch.relu(x @ w)
    return torch.zeros_like(h).index_add(0, edge_index[1], h[edge_index[0]])

w = torch.nn.Parameter(torch.randn(4, 3))
x, edge_index = torch.randn(9, 4), torch.randint(9, (2, 40))
"""
_TRAINS = f"""{_COMPILED}
optimizer = torch.optim.SGD([w], 0.1)
for i in range(9):
    optimizer.zero_grad()
    layer(x, w, edge_index).sum().backward()
    optimizer.step()
    neighbour.seen.append((i, sys.argv, __name__))
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, empty, and another one with a module that stands next to scripts."""
    (tmp_path / "program").mkdir()
    (tmp_path / "program" / "neighbour.py").write_text("seen = []\n")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.delitem(sys.modules, "neighbour", raising=False)
    return tmp_path / "program"


def program(folder: Path, text: str) -> str:
    (folder / "train.py").write_text(text)
    return str(folder / "train.py")


def test_a_profile_has_the_time_of_each_kernel_in_a_step(folder: Path) -> None:
    script, path, argv = program(folder, _TRAINS), list(sys.path), sys.argv
    assert main(["profile", "--steps", "4", "-o", "found.json", script, "--lr", "3", "--steps", "5"]) == 0
    assert (sys.path, sys.argv) == (path, argv)
    seen = sys.modules["neighbour"].seen
    assert seen == [(i, [script, "--lr", "3", "--steps", "5"], "__main__") for i in range(3)]
    found = json.loads(Path("found.json").read_text())
    step = found["measured"]
    assert "the median of 3 steps without compilation" in step["about"] and "optimizer" in step["about"]
    work = {w["name"]: w for w in step["work"]}
    kernels = {name for name, w in work.items() if w["kind"] == "kernel"}
    assert {name.partition(".")[2] for name in kernels} == {k["name"] for k in found["kernels"] if k["half"] != "once"}
    assert all(w["runs"] == 1 and w["seconds"] > 0 for w in work.values())
    assert sum(w["seconds"] for w in work.values()) == pytest.approx(step["seconds"])
    assert step["peak"] >= step["above"] >= 0
    for kernel in found["kernels"]:
        assert kernel["cost"]["seconds"] > 0 and kernel["cost"]["bound_seconds"] > 0


def test_one_page_explains_functions_of_every_door(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = """
def other(x, edge_index):
    return torch.zeros_like(x).index_add(0, edge_index[1], torch.exp(x[edge_index[0]]))

torch.compile(other, backend="graphweave")(x, edge_index)
"""
    assert main(["explain", program(folder, _COMPILED + other + "layer(x, w, edge_index)\n")]) == 0
    assert capsys.readouterr().err == "graphweave: wrote train_explained.html, after 0 steps\n"
    page = Path("train_explained.html").read_text()
    assert "what became of train.py" in page
    assert "torch.exp(x[edge_index[0]])" in page and "h = torch.relu(x @ w)" in page
    assert "Time of a step" not in page


@pytest.mark.parametrize(
    ("ending", "status", "told"),
    [
        ("sys.exit(7)", 7, None),
        ("sys.exit('no more')", 1, "no more"),
        ("raise SystemExit", 0, None),
        ("raise ValueError('mine')", 1, "ValueError: mine"),
        ("raise KeyboardInterrupt", 130, "KeyboardInterrupt"),
        ("raise graphweave.core.errors.DataError('mine')", 1, "DataError: mine"),
    ],
)
def test_the_end_of_the_program_stays_its_own(
    folder: Path, capsys: pytest.CaptureFixture[str], ending: str, status: int, told: str | None
) -> None:
    script = program(folder, _COMPILED + "layer(x, w, edge_index)\n" + ending + "\n")
    assert main(["explain", "--text", script]) == status
    out, err = capsys.readouterr()
    assert "captured" in out and "train.py" in out
    assert (told or "") in err
    assert ("Traceback" in err) == ("raise" in ending and status != 0)
    if "Traceback" in err:
        assert err.splitlines()[1].startswith(f'  File "{script}", line ')  # none of our own frames


def test_a_program_without_an_optimizer_has_a_step_for_each_call(folder: Path) -> None:
    script = program(
        folder, _COMPILED + "for i in range(9):\n    neighbour.seen.append(i)\n    layer(x, w, edge_index)\n"
    )
    assert main(["profile", "--steps", "3", "--out", "found.json", script]) == 0
    assert sys.modules["neighbour"].seen == [0, 1, 2, 3]
    assert "one call of the compiled function" in json.loads(Path("found.json").read_text())["measured"]["about"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["explain", "there_is_none.py"], "there_is_none.py: expected a Python program"),
        (["explain", "-o", "page.pdf", "SCRIPT"], "page.pdf: expected a file in a folder that exists, ending in .html"),
        (["profile", "-o", "none/page.html", "SCRIPT"], "none/page.html: expected a file in a folder that exists"),
        (["profile", "SCRIPT"], "called no compiled function. Give its model to graphweave.compile"),
    ],
)
def test_what_cannot_be_explained_is_told(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    script = program(folder, "import neighbour\nneighbour.seen.append(1)\n")
    assert main([script if word == "SCRIPT" else word for word in arguments]) == 2
    assert message in capsys.readouterr().err
    ran: Any = sys.modules.get("neighbour")
    assert (ran is not None) == ("called no" in message)
    assert not list(Path().iterdir())
