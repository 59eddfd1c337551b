"""PyTorch's structured trace (TORCH_TRACE) shows programs, kernels and tapes, which `tlparse` makes pages of."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests import patience

_SCRIPT = """\
import torch, graphweave

def layer(x, w, edge_index):
    h = torch.relu(x @ w)
    return torch.zeros_like(h).index_add(0, edge_index[1], h[edge_index[0]])

w = torch.randn(4, 3, requires_grad=True)
given = torch.randn(5, 4), w, torch.tensor([[0, 1, 2], [1, 2, 0]])
graphweave.compile(layer)(*given).sum().backward()
print(graphweave.explain(layer, *given).text("kernels"))
"""


def artifacts(folder: Path) -> dict[str, str]:
    """The artifacts of a trace: a line of JSON each, and its text in lines that begin with a tab. The first of several
    of one name counts."""
    found: dict[str, str] = {}
    (file,) = folder.glob("*.log")
    name = ""
    for line in file.read_text().splitlines():
        if line.startswith("\t"):
            if name:
                found[name] += f"{line[1:]}\n"
            continue
        about = json.loads(line[line.index("] {") + 2 :])
        name = about.get("artifact", {}).get("name", "")
        if name in found:
            name = ""
        elif name:
            found[name] = ""
    return found


def test_a_trace_has_programs_kernels_and_tapes(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(_SCRIPT)
    environment = {**os.environ, "TORCH_TRACE": str(tmp_path / "trace")}
    done = subprocess.run(
        [sys.executable, str(script)], env=environment, capture_output=True, text=True, timeout=patience.seconds()
    )
    assert done.returncode == 0, done.stderr
    found = artifacts(tmp_path / "trace")
    stages = {"graph0_captured.message.txt", "graph0_joint.message.txt"}
    halves = {f"graph0_{half}.{kind}" for half in ("forward", "backward") for kind in ("message.txt", "tape.txt", "py")}
    assert found.keys() >= {f"graphweave_{name}" for name in stages | halves}
    kernels = {name: text for name, text in found.items() if name.startswith("graphweave_") and name.endswith(".cpp")}
    assert {"graphweave_graph0.forward_1.cpp"} <= kernels.keys()
    assert all(text.strip() in done.stdout for text in kernels.values())  # as explain prints them
