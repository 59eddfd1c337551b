"""Every program of `examples/` runs as a user runs it, and learns: what it prints is better than without training."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests import patience

EXAMPLES = Path(__file__).parents[2] / "examples"
MARGIN = 0.15
"""The least difference between what a program has learned and what one gets without training."""

QUICK = {"graph_classification", "own_rule", "recommender"}
"""Programs that run by default, one each of PyG's models, of `graphweave.extend` and of plain PyTorch. Each takes some
10 seconds to compile, so the others are slow tests."""

NEEDS = {"jax_attention": "jax", "molecular_dynamics": "ase", "train_ray": "ray"}
"""Program -> the package without which it is skipped."""

NAMES = sorted(path.stem for path in EXAMPLES.glob("*.py") if path.stem != "train_ray")  # test_cli.py's way of training
CASES = [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in NAMES]


def run(command: list[str], folder: Path) -> str:
    """What a program prints. A warning of graphweave's ends it, and so does any other error."""
    environment = {**os.environ, "PYTHONPATH": str(EXAMPLES.parent), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=patience.seconds(), check=False
    )
    assert done.returncode == 0, done.stderr
    assert "graphweave:" not in done.stderr, done.stderr
    return done.stdout


def check_has_learned(printed: str) -> None:
    """The last line is `MEASURE: NUMBER, WITHOUT TRAINING: NUMBER`."""
    last = printed.strip().splitlines()[-1]
    found = re.fullmatch(r"[\w ]+: (\d\.\d+), [\w ]+: (\d\.\d+)", last)
    assert found, f"expected a measure and what one gets without training (got {last!r})"
    assert float(found[1]) > float(found[2]) + MARGIN, last


@pytest.mark.parametrize("name", CASES)
def test_a_program_learns(name: str, tmp_path: Path) -> None:
    if name in NEEDS:
        pytest.importorskip(NEEDS[name])
    printed = run([sys.executable, str(EXAMPLES / f"{name}.py")], tmp_path)
    check_has_learned(printed)
    if name == "own_rule":
        assert "rule tried: True, all in kernels: True" in printed
    if name == "own_attention":
        assert "captured" in printed and "left to PyTorch" not in printed and "graph break" not in printed


@pytest.mark.slow
def test_two_ranks_learn(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    check_has_learned(run([*command, str(EXAMPLES / "data_parallel.py")], tmp_path))


@pytest.mark.slow
def test_the_notebook_learns(tmp_path: Path) -> None:
    """Its cells are one program."""
    notebook = json.loads((EXAMPLES / "five_minutes.ipynb").read_text(encoding="utf-8"))
    cells = notebook["cells"]
    (tmp_path / "notebook.py").write_text("\n\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "code"))
    printed = run([sys.executable, "notebook.py"], tmp_path).splitlines()
    assert "gradients agree" in printed
    check_has_learned(next(line for line in printed if line.startswith("test accuracy")))


def test_the_notebook_is_stored_without_outputs() -> None:
    notebook = json.loads((EXAMPLES / "five_minutes.ipynb").read_text(encoding="utf-8"))
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    cells = notebook["cells"]
    assert len({cell["id"] for cell in cells}) == len(cells)
    for cell in cells:
        assert cell["cell_type"] in ("markdown", "code")
        assert cell["cell_type"] == "markdown" or (cell["outputs"] == [] and cell["execution_count"] is None)


def test_the_table_names_every_example() -> None:
    named = set(re.findall(r"\]\(([\w.]+)\)", (EXAMPLES / "README.md").read_text(encoding="utf-8")))
    assert named == {path.name for path in EXAMPLES.iterdir() if path.is_file()} - {"README.md"}


@pytest.mark.parametrize("name", NAMES)
def test_importing_a_program_does_nothing(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """What a program does stands behind its main guard, and its docstring says how to start it."""
    if name in NEEDS:
        pytest.importorskip(NEEDS[name])
    if name == "own_rule":
        return  # its operators would be declared for the whole process
    path = EXAMPLES / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"examples_{name}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert callable(module.main) and capsys.readouterr().out == ""
    assert f"examples/{name}.py" in (module.__doc__ or "")
    assert len(path.read_text().splitlines()) <= 130
