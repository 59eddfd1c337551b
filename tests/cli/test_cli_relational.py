"""`graphweave train` over relations: what it learns, what it prints, how it refuses."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from bench.graphs import data_dir
from graphweave.cli.main import main
from graphweave.cli.memory import peak_extra_bytes
from graphweave.cli.named_data import load_relational
from graphweave.data import KnowledgeGraph, KnownTails, Ranking, TypedNodeData, families, filtered_ranks, relational
from graphweave.examples.relational_models import RELATIONAL_MODELS, RelationalEdges
from graphweave.examples.training import Links, TrainingJob
from graphweave.examples.triples import TripleTraining
from graphweave.examples.typed_nodes import TypedNodeTraining
from tests.support import by_default


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Graphs this small gain nothing from a second thread, and lose much where the cores are shared."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def job(model: str = "rgcn", hidden: int = 32, dropout: float = 0.0, lr: float = 0.01, **links: Any) -> TrainingJob:
    return TrainingJob(model, hidden, 4, dropout, lr, 0.0, epochs=3, seed=0, threads=1, links=Links(**links))


def clubs(members: int = 20) -> TypedNodeData:
    """Two clubs, a node type without features, whose members, of random features, are joined to their club's node
    by a relation of four; members carry the club as label. Some relations have no edge."""
    generator = torch.Generator().manual_seed(3)
    club = torch.arange(members) % 2
    src, dst = torch.arange(members), members + club
    edges = torch.cat([torch.stack([src, dst]), torch.stack([dst, src])], 1)
    y = torch.cat([club, torch.full((2,), -1)])
    part = torch.arange(members + 2) % 5
    masks = [(y >= 0) & chosen for chosen in (part < 3, part == 3, part == 4)]
    x = torch.randn(members, 6, generator=generator)
    return TypedNodeData(
        (members, 2), (x, None), edges, torch.arange(2).repeat_interleave(members), 4, y, *masks, 2, "clubs"
    )


def by_frequency(kg: KnowledgeGraph, triples: Tensor) -> float:
    """Mean reciprocal rank of scoring a tail by how often its relation has it in `train`, both ways."""
    counts = torch.zeros(2 * kg.num_rels, kg.num_nodes)
    _, rel, tail = kg.both_ways(kg.train).unbind(1)
    counts.index_put_((rel, tail), torch.ones(len(rel)), accumulate=True)
    queries = kg.both_ways(triples)
    return Ranking.of(
        filtered_ranks(counts[queries[:, 1]], queries, KnownTails.of(kg.everything(), 2 * kg.num_rels))
    ).mrr


@pytest.mark.parametrize("model", RELATIONAL_MODELS)
def test_every_model_learns_families(model: str) -> None:
    kg = families(count=4, seed=1)
    runner = TripleTraining("eager", job(model, lr=0.02, batch=400, eval_every=40), kg)
    for _ in range(40):
        runner.epoch()
    assert runner.history.loss[-1] < 0.5 * runner.history.loss[0]
    assert runner.test()["test MRR"] > 0.6 > 2 * by_frequency(kg, kg.test)
    # validated every 40 epochs, and after the last of the job's 3
    assert [i for i, value in enumerate(runner.history.val) if not math.isnan(value)] == [2, 39]


@pytest.mark.parametrize("model", RELATIONAL_MODELS)
def test_every_model_tells_clubs_apart(model: str) -> None:
    runner = TypedNodeTraining("eager", job(model), clubs())
    for _ in range(60):
        runner.epoch()
    assert runner.history.loss[-1] < 0.1 < runner.history.loss[0]
    assert runner.history.val[-1] == 1.0 and runner.test() == {"test accuracy": 1.0}
    found = runner.predictions()
    assert found.true.numel() > 0 and found.predicted.equal(found.true) and len(found.classes) == clubs().num_classes


CHANGES = ({"decoder": "rotate"}, {"negatives": 30}, {"decoder": "rotate", "negatives": 30})


@pytest.mark.parametrize("changes", by_default(CHANGES, CHANGES[-1]))
def test_decoders_and_negatives(changes: dict[str, Any]) -> None:
    kg = families(count=2, seed=1)
    runner = TripleTraining("eager", job(lr=0.02, batch=150, **changes), kg)
    for _ in range(25):
        runner.epoch()
    assert runner.test()["test MRR"] > 2 * by_frequency(kg, kg.test)


@pytest.mark.slow
def test_compiled_links_follow_eager() -> None:
    """The same weights, batches and dropped edges: losses agree to float32 rounding, which some Adam steps amplify."""
    kg = families(count=3, seed=2)
    runners = [TripleTraining(way, job(batch=200), kg) for way in ("eager", "graphweave")]
    for _ in range(3):
        for runner in runners:
            runner.epoch()
    eager, compiled = (torch.tensor(runner.history.loss) for runner in runners)
    torch.testing.assert_close(compiled, eager, rtol=1e-4, atol=1e-5)


def test_compiled_classification_follows_eager() -> None:
    runners = [TypedNodeTraining(way, job(), clubs()) for way in ("eager", "graphweave")]
    for _ in range(4):
        for runner in runners:
            runner.epoch()
    eager, compiled = (torch.tensor(runner.history.loss) for runner in runners)
    torch.testing.assert_close(compiled, eager, rtol=1e-4, atol=1e-5)
    assert runners[0].history.val == runners[1].history.val


@pytest.mark.parametrize("rate", [0.0, 0.5, 0.9999])
def test_edges_of_the_batch_are_left_out_with_their_inverses(rate: float) -> None:
    kg = families(count=2, seed=2)
    runner = TripleTraining("eager", job(edge_dropout=rate), kg)
    ids = torch.arange(10, 60)
    left = runner._without(runner._left_out(ids))
    rows = {tuple(row) for row in torch.stack([*left.graph.edges(), left.etype], 1).tolist()}
    kept = 0
    for i, (head, rel, tail) in enumerate(kg.train.tolist()):
        there, back = (head, tail, rel) in rows, (tail, head, rel + kg.num_rels) in rows
        assert there == back and (there or 10 <= i < 60)
        kept += 10 <= i < 60 and there
    assert {0.0: kept == 50, 0.5: 12 < kept < 38, 0.9999: kept == 0}[rate]


def test_norms_are_one_over_the_edges_of_the_relation() -> None:
    edge_index = torch.tensor([[0, 1, 2, 0, 1], [2, 2, 2, 1, 2]])
    etype = torch.tensor([1, 1, 0, 1, 1])
    edges = RelationalEdges.of(edge_index, etype, torch.zeros(3, dtype=torch.int64))
    torch.testing.assert_close(edges.norm, torch.tensor([1 / 3, 1 / 3, 1, 1, 1 / 3]))
    none = RelationalEdges.of(edge_index[:, :0], etype[:0], torch.zeros(3, dtype=torch.int64))
    assert none.norm.shape == (0,) and none.graph.num_edges() == 0


def test_train_reports_links(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plot = tmp_path / "out.png"
    argv = ["train", "--no-compile", "--model", "rgcn", "--epochs", "6", "--hidden", "8", "--plot", str(plot)]
    assert main(argv) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    for text in ("rgcn on families: 1383 entities, 6 relations", "epoch 6/6", "val MRR 0.", "test MRR", "test Hits@1",
                 "test Hits@3", "test Hits@10", "median epoch", "peak memory"):  # fmt: skip
        assert text in captured.out
    assert "epoch 4/6" in captured.out and "val MRR none" in captured.out
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_train_reports_classes_and_splits_without_validation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "rdf.npz"
    arrays = {"num_nodes": 4, "num_relations": 1, "head": [0, 1, 3], "rel": [0, 0, 0], "tail": [1, 2, 3],
              "y": [0, -1, 1, 0], "train_idx": [0, 2], "test_idx": [3]}  # fmt: skip
    np.savez(file, **{key: np.asarray(value) for key, value in arrays.items()})
    assert main(["train", "--no-compile", "--model", "hgt", "--data", str(file), "--epochs", "2"]) == 0
    out = capsys.readouterr().out
    for text in ("hgt on rdf.npz: 4 nodes of 1 types, 6 edges of 2 relations, 2 classes", "val none", "test accuracy"):
        assert text in out


def test_an_empty_split_is_not_measured(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "kg.npz"
    arrays = {f"{part}_{key}": np.array(rows, int) for part, rows in (("train", [0, 1]), ("valid", []), ("test", []))
              for key in ("head", "rel", "tail")}  # fmt: skip
    np.savez(file, num_nodes=2, num_relations=2, **arrays)
    argv = ["train", "--no-compile", "--model", "rgcn", "--data", str(file), "--epochs", "2", "--eval-every", "1"]
    assert main(argv) == 0
    assert "val MRR none" in capsys.readouterr().out


def test_seed_decides_everything(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, generator = tmp_path / "kg.npz", np.random.default_rng(0)
    most = {"head": 30, "rel": 3, "tail": 30}
    sizes = {"train": 200, "valid": 20, "test": 20}
    arrays = {f"{part}_{key}": generator.integers(0, most[key], sizes[part]) for part in sizes for key in most}
    np.savez(file, num_nodes=30, num_relations=3, **arrays)

    def losses(seed: str) -> list[str]:
        argv = ["train", "--no-compile", "--model", "rgcn", "--data", str(file), "--epochs", "2", "--hidden", "8"]
        assert main([*argv, "--seed", seed]) == 0
        return [line.split("loss ")[1].split()[0] for line in capsys.readouterr().out.splitlines() if "loss" in line]

    first = losses("4")
    assert len(first) == 2 and first == losses("4") and first != losses("5")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--data", "digits"], "--data must be families or FILE.npz for models over relations (got 'digits')"),
        (["--data", "nowhere.npz"], "nowhere.npz: no such file"),
        (["--symmetric"], "--symmetric is not for rgcn"),
        (["--decoder", "transe"], "invalid choice: 'transe'"),
        (["--decoder", "rotate", "--hidden", "7"], "hidden must be even for rotate"),
        (["--model", "hgt", "--hidden", "10"], "hidden must be a multiple of heads for hgt (got 10 and 4)"),
        (["--batch", "0"], "--batch: must be a whole number above 0"),
        (["--negatives", "-1"], "--negatives: must be a whole number, 0 or above"),
        (["--edge-dropout", "1"], "--edge-dropout: must be a number from 0 to below 1"),
        (["--eval-every", "x"], "--eval-every: must be a whole number above 0"),
        (["--model", "gcn", "--data", "families"], "--data must be digits, karate, FILE.npz, FILE.graphml"),
    ],
)
def test_bad_arguments_get_one_line(argv: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        status = main(["train", "--no-compile", "--model", "rgcn", *argv])
    except SystemExit as exit:
        status = exit.code  # type: ignore[assignment]
    captured = capsys.readouterr()
    assert status == 2 and captured.out == ""
    assert message in captured.err and captured.err.count("\n") == 1


def test_nothing_to_train_on_gets_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "kg.npz"
    none = {
        f"{part}_{key}": np.array([], int) for part in ("train", "valid", "test") for key in ("head", "rel", "tail")
    }
    np.savez(file, num_nodes=2, num_relations=2, **none)
    assert main(["train", "--model", "rgcn", "--data", str(file)]) == 2
    assert "kg.npz: no triple is in the train split" in capsys.readouterr().err


def test_divergence_gets_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["train", "--no-compile", "--model", "rgcn", "--epochs", "1", "--hidden", "8", "--lr", "1e30"]
    assert main(argv) == 2
    assert "got NaN" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("way", ["eager", "graphweave"])
def test_peak_memory_sees_what_a_step_allocates(way: str) -> None:
    """Scores of 16000 tails for all 1383 entities and their gradient: 85 MiB each."""
    kg = families()
    small, large = (peak_extra_bytes(way, job(batch=batch), kg) for batch in (500, 8000))
    assert small is not None and large is not None
    assert large - small > 150 * 2**20


@pytest.mark.slow
def test_compare_measures_three_ways(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["train", "--model", "rgcn", "--epochs", "2", "--hidden", "8", "--threads", "1", "--compare"]
    assert main(argv) == 0
    out = capsys.readouterr().out
    for text in ("graphweave", "eager", "inductor", "peak extra memory"):
        assert text in out
    assert "not measured" not in out


@pytest.mark.data
@pytest.mark.parametrize(
    ("name", "least"),
    [
        ("nations", 0.68),
        pytest.param("umls", 0.8, marks=pytest.mark.slow),
        pytest.param("kinships", 0.5, marks=pytest.mark.slow),
    ],
)
def test_links_of_real_graphs_beat_frequencies(name: str, least: float) -> None:
    file = data_dir() / f"{name}.npz"
    if not file.is_file():
        pytest.skip(f"{file} is absent (GRAPHWEAVE_DATA names its folder)")
    kg = relational(file)
    assert isinstance(kg, KnowledgeGraph)
    runner = TripleTraining("eager", job(hidden=64, dropout=0.2, batch=min(len(kg.train) // 8, 1024)), kg)
    for _ in range(20):
        runner.epoch()
    assert runner.rank(kg.test).mrr > max(least, 1.2 * by_frequency(kg, kg.test))


@pytest.mark.data
def test_aifb_is_classified_well() -> None:
    file = data_dir() / "rdf_aifb.npz"
    if not file.is_file():
        pytest.skip(f"{file} is absent (GRAPHWEAVE_DATA names its folder)")
    data = load_relational(str(file), seed=0)
    assert isinstance(data, TypedNodeData)
    runner = TypedNodeTraining("eager", job(hidden=16, dropout=0.2), data)
    for _ in range(30):
        runner.step()
    assert runner.test()["test accuracy"] > 0.8
