"""The command line: what it prints, what it returns, how it refuses."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

import graphweave
from graphweave.cli.main import main
from graphweave.cli.memory import peak_extra_bytes
from graphweave.cli.named_data import load
from graphweave.data import karate
from graphweave.examples.convolutions import MODELS, build
from graphweave.examples.nodes import NodeTraining
from graphweave.examples.training import TrainingJob


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Graphs this small gain nothing from a second thread, and lose much where the cores are shared."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def job(**changes: object) -> TrainingJob:
    fields = {
        "model": "gcn", "hidden": 16, "heads": 2, "dropout": 0.0, "lr": 0.01, "weight_decay": 0.0, "epochs": 3,
        "seed": 0, "threads": 1,
    }  # fmt: skip
    return TrainingJob(**(fields | changes))  # type: ignore[arg-type]


def refused(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    """The one line that `graphweave train` prints when it returns 2."""
    try:
        status = main(["train", *argv])
    except SystemExit as exit:
        status = exit.code
    captured = capsys.readouterr()
    assert status == 2
    assert captured.out == ""
    assert captured.err.endswith("\n") and captured.err.count("\n") == 1
    return captured.err


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--data", "nowhere.npz"], "nowhere.npz: no such file"),
        (
            ["--data", "digitz"],
            "or planetoid:NAME (got 'digitz'). Name one of these.",
        ),
        (["--data", "planetoid:corra"], "unknown graph 'corra' (expected one of cora, citeseer, pubmed)"),
        (["--data", "planetoid:"], "unknown graph ''"),
        (["--model", "gnn"], "invalid choice: 'gnn'"),
        (["--epochs", "0"], "--epochs: must be a whole number above 0 (got '0')"),
        (["--epochs", "1.5"], "--epochs: must be a whole number above 0 (got '1.5')"),
        (["--lr", "nan"], "--lr: must be a number above 0 (got 'nan')"),
        (["--dropout", "1"], "--dropout: must be a number from 0 to below 1 (got '1')"),
        (["--data", "karate", "--hidden", "10", "--heads", "4"], "hidden must be a multiple of heads"),
        (["--compare", "--no-compile"], "exclude each other"),
        (["--plot", "no/such/folder/out.png"], "--plot cannot be written: no/such/folder/out.png"),
        (["--plot", "out.gif"], "--plot must end in .png, .pdf, .svg (got 'out.gif')"),
        (["--surprise"], "unrecognized arguments: --surprise"),
    ],
)
def test_bad_arguments_get_one_line(argv: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert message in refused(capsys, *argv)


RING = {"src": np.arange(6), "dst": (np.arange(6) + 1) % 6, "num_nodes": np.int64(6), "y": np.arange(6) % 2}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dst": np.array([1, 2, 3, 4, 5, 6])}, "node 6 at edge 5 (dst) is out of range: the graph has 6 nodes"),
        ({"dst": np.array([1, 2, 3])}, "'src' and 'dst' must have one length (got 6 and 3)"),
        ({"y": np.array([0, 1, np.nan, 1, 0, 1])}, "labels 'y' must be whole numbers (got nan)"),
        ({"y": np.array([0, 1])}, "labels 'y' must have shape [6]"),
        ({"y": np.full(6, -1)}, "has no labels"),
        ({"feat": np.full((6, 2), np.nan)}, "node features must be finite"),
        ({"train_idx": np.array([], int), "val_idx": np.array([0]), "test_idx": np.array([1])}, "no node is in the"),
    ],
)
def test_bad_files_get_one_line(
    changes: dict[str, np.ndarray], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "bad.npz"
    np.savez(file, **(RING | changes))
    assert message in refused(capsys, "--data", str(file))


@pytest.mark.parametrize("more", [{}, {"num_classes": np.int64(7)}, {"num_classes": np.int64(7), "y": np.full(6, -1)}])
def test_a_file_without_labels_gets_one_line(
    more: dict[str, np.ndarray], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "bare.npz"
    np.savez(file, **({key: value for key, value in RING.items() if key != "y"} | more))
    counted = " for its 7 classes" if more else ""
    said = f"bare.npz: the file has no labels 'y'{counted}, so there is nothing to train on. Add them to the file."
    assert refused(capsys, "--data", str(file)) == f"graphweave train: error: {said}\n"


def test_notes_of_a_file_are_lines_before_the_training(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "named.npz"
    arrays = RING | {"feats": np.ones((6, 3)), "edge_attr": np.ones(6), "class_names": np.array(["a", "b"])}
    np.savez(file, **arrays)
    assert main(["train", "--no-compile", "--model", "gcn", "--epochs", "1", "--data", str(file)]) == 0
    captured = capsys.readouterr()
    drawn, unused = captured.err.splitlines()
    assert drawn.startswith("graphweave train: note: named.npz: no features were found (looked for 'feat', 'x', ")
    said = "named.npz: 'feats', 'edge_attr' are not used. docs/data.md has the names that are read."
    assert unused == f"graphweave train: note: {said}"
    assert "64 features" in captured.out


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"graphweave {graphweave.__version__}\n"


def test_a_wrong_option_points_to_the_help_of_its_command(capsys: pytest.CaptureFixture[str]) -> None:
    said = "unrecognized arguments: --epoch 3 (see graphweave train --help)"
    assert refused(capsys, "--epoch", "3") == f"graphweave train: error: {said}\n"


def test_a_file_that_is_no_archive_is_not_to_be_loaded_otherwise(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "text.npz"
    file.write_text("src dst\n0 1\n")
    said = "text.npz: not a readable .npz file (it is no zip archive: it begins with b'src ds'). Write it with numpy"
    assert refused(capsys, "--data", str(file)) == f"graphweave train: error: {said}.savez.\n"
    np.savez(file, **(RING | {"y": np.array([{}] * 6)}))
    line = refused(capsys, "--data", str(file))
    assert "it holds Python objects, which are not read" in line and "allow_pickle" not in line


def test_no_network_gets_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    import torch_geometric.datasets

    def refuse(*_: object) -> None:
        sys.stderr.write("Downloading\n")
        raise ConnectionError("no route to host")

    monkeypatch.setattr(torch_geometric.datasets, "Planetoid", refuse)
    assert "could not download cora" in refused(capsys, "--data", "planetoid:cora")


@pytest.mark.parametrize("module", ["matplotlib.figure", "torch_geometric.nn", "networkx"])
def test_missing_packages_get_one_line(
    module: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    line = refused(capsys, "--data", "karate", "--plot", "out.png", "--no-compile")
    assert "missing" in line and "pip install" in line


@pytest.mark.parametrize("model", MODELS)
def test_every_model_learns_karate(model: str) -> None:
    runner = NodeTraining("eager", job(model=model), karate())
    for _ in range(60):
        runner.epoch()
    assert runner.history.loss[-1] < 0.3 < runner.history.loss[0]
    assert runner.history.train[-1] == 1.0
    assert len(runner.history.seconds) == 60


@pytest.mark.parametrize("model", MODELS)
def test_models_give_one_logit_for_each_class(model: str) -> None:
    data = karate()
    built = build(TrainingJob(model, hidden=8), features=34, out=5)
    assert built(data.x, data.edge_index).shape == (34, 5)


def test_digits_are_read_well() -> None:
    runner = NodeTraining("eager", job(model="sage", hidden=32, dropout=0.5), load("digits", symmetric=False, seed=0))
    for _ in range(60):
        runner.step()
    assert runner.test()["test accuracy"] > 0.9


@pytest.mark.parametrize("model", ["gcn", pytest.param("gat", marks=pytest.mark.slow)])
def test_compiled_training_follows_eager(model: str) -> None:
    """Losses with the same weights and data agree to float32 rounding, which a few Adam steps amplify."""
    runners = [NodeTraining(way, job(model=model), karate()) for way in ("eager", "graphweave")]
    for _ in range(4):
        for runner in runners:
            runner.epoch()
    eager, compiled = (torch.tensor(runner.history.loss) for runner in runners)
    torch.testing.assert_close(compiled, eager, rtol=1e-4, atol=1e-5)
    assert runners[0].history.val == runners[1].history.val


@pytest.mark.slow  # by default, tests/runtime/test_random.py compares masks and gradients
def test_compiled_training_with_dropout() -> None:
    """The backward uses the forward's mask; with another one the loss would not fall."""
    runner = NodeTraining("graphweave", job(model="sage", dropout=0.5, hidden=64), karate())
    for _ in range(40):
        runner.step()
    runner.epoch()
    assert runner.history.train == [1.0]
    assert runner.history.loss[0] < 0.2


def test_train_reports(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plot = tmp_path / "out.png"
    argv = ["train", "--no-compile", "--model", "gin", "--data", "karate", "--epochs", "12", "--plot", str(plot)]
    assert main(argv) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    for text in ("gin on karate: 34 nodes, 156 edges", "epoch 12/12", "test accuracy", "median epoch", "peak memory"):
        assert text in captured.out
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_seed_decides_everything(capsys: pytest.CaptureFixture[str]) -> None:
    def losses(seed: str) -> list[str]:
        argv = ["train", "--no-compile", "--model", "sage", "--data", "karate", "--epochs", "3", "--seed", seed]
        assert main(argv) == 0
        return [line.split("loss ")[1].split()[0] for line in capsys.readouterr().out.splitlines() if "loss" in line]

    first = losses("4")
    assert first == losses("4")
    assert first != losses("5")


def test_process_without_terminal_input_or_utf8(tmp_path: Path) -> None:
    """The process starts as under a job runner: no terminal, no stdin, CI set, a plain ASCII locale."""
    file = tmp_path / "ring.npz"
    np.savez(file, **RING)
    environ = os.environ | {"CI": "true", "LC_ALL": "C", "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    command = [sys.executable, "-m", "graphweave.cli.main", "train", "--no-compile", "--model", "gcn", "--epochs", "2"]
    done = subprocess.run(
        [*command, "--data", str(file)], env=environ, stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (
        0,
        "graphweave train: note: ring.npz: no features were found (looked for 'feat', 'x', 'features', and"
        " 'feat_indptr' of a CSR matrix), so 64 random numbers are drawn for each node.\n",
    )
    assert "epoch 2/2" in done.stdout
    assert "\x1b" not in done.stdout and "\r" not in done.stdout


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="peak memory is measured on Linux only")
def test_peak_memory_sees_what_a_step_allocates() -> None:
    """EdgeConv in eager mode holds several edges x hidden tensors: 19856 x 256 floats are 19 MiB each."""
    data = load("digits", symmetric=False, seed=0)
    small = peak_extra_bytes("eager", job(model="edgeconv", hidden=8), data)
    large = peak_extra_bytes("eager", job(model="edgeconv", hidden=256), data)
    assert small is not None and large is not None
    assert large - small > 40 * 2**20


@pytest.mark.slow
def test_compare_measures_three_ways(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--model", "gcn", "--data", "karate", "--epochs", "4", "--threads", "1", "--compare"]) == 0
    out = capsys.readouterr().out
    for text in ("graphweave", "eager", "inductor", "peak extra memory"):
        assert text in out
    assert "not measured" not in out


def test_bench_times_each_way_and_keeps_what_tuning_finds(
    capsys: pytest.CaptureFixture[str], fresh_compiler: None
) -> None:
    assert main(["bench", "--data", "karate", "--model", "gcn", "--steps", "2", "--tune", "10"]) == 0
    told = capsys.readouterr().out
    assert "gcn on karate: 34 nodes" in told
    assert [name in told for name in ("graphweave", "tuned", "eager", "median step", "first step")] == [True] * 5
    counted = graphweave.counters()
    assert counted["tunings"] + counted["tuning_hits"] > 0, "what an earlier run stored is a hit"


@pytest.mark.parametrize("argv", [["--tune", "0"], ["--steps", "0"], ["--epochs", "3"], ["--data", "digitz"]])
def test_bench_refuses_in_one_line(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    try:
        status = main(["bench", *argv])
    except SystemExit as exit:
        status = exit.code
    captured = capsys.readouterr()
    assert status == 2 and captured.out == "" and captured.err.count("\n") == 1


def test_the_package_is_the_command() -> None:
    done = subprocess.run([sys.executable, "-m", "graphweave", "--help"], capture_output=True, text=True)
    assert done.returncode == 0 and "bench" in done.stdout
