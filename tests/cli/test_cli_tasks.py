"""Tasks of `graphweave train`: their data, their trainings in both ways, checkpoints, and what they refuse."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from graphweave.cli.main import main
from graphweave.cli.named_data import load, load_for
from graphweave.core.errors import DataError
from graphweave.data import Interactions, graph_set, interactions, point_set
from graphweave.distributed import marks, snapshots
from graphweave.examples.checkpoint import resume, save
from graphweave.examples.clouds import nearest
from graphweave.examples.pairs import PAIR_DECODERS
from graphweave.examples.recommend import GCMC, NDCG, RECALL, RecommenderTraining
from graphweave.examples.tasks import Data, start
from graphweave.examples.training import Links, TrainingJob
from tests.support import by_default

RANDOM = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Graphs this small gain nothing from a second thread, and lose much where the cores are shared."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def rings(count: int = 40) -> dict[str, Any]:
    """Graph i is a ring of 3 or 6 nodes, which is its class, edges both ways."""
    sizes = np.where(np.arange(count) % 2, 6, 3)
    ptr = np.concatenate([[0], sizes.cumsum()])
    src = np.arange(ptr[-1])
    dst = np.concatenate([np.roll(np.arange(a, b), -1) for a, b in itertools.pairwise(ptr)])
    return {
        "src": np.concatenate([src, dst]), "dst": np.concatenate([dst, src]), "num_nodes": ptr[-1], "graph_ptr": ptr,
        "y": np.arange(count) % 2, "node_attr": RANDOM.normal(size=(ptr[-1], 3)) + np.repeat(sizes, sizes)[:, None],
    }  # fmt: skip


def numbers() -> dict[str, Any]:
    """The same rings with two numbers for each, of which some are unknown."""
    found = rings()
    y = np.stack([np.arange(40) % 2 * 2.5, RANDOM.normal(size=40)], 1)
    y[3, 1] = np.nan
    return found | {"y": y}


def flags() -> dict[str, Any]:
    found = rings()
    y = np.stack([np.arange(40) % 2, np.arange(40) % 4 < 2], 1).astype(np.float32)
    y[5, 0] = np.nan
    return found | {"y": y}


def choices() -> dict[str, Any]:
    """Users 0 to 19 choose even items, the others odd ones."""
    users = np.repeat(np.arange(40), 8)
    items = 2 * RANDOM.integers(0, 10, users.size) + (users >= 20)
    keys = np.unique(users * 20 + items)
    test = np.zeros(keys.size, dtype=bool)
    test[::5] = True
    pairs = {"train": keys[~test], "test": keys[test]}
    ends = {f"{part}_{what}": f(k) for part, k in pairs.items() for what, f in
            (("user", lambda k: k // 20), ("item", lambda k: k % 20))}  # fmt: skip
    return ends | {"num_users": np.int64(40), "num_items": np.int64(20)}


def clouds() -> dict[str, Any]:
    """Balls and flat discs of 30 points."""
    points = RANDOM.normal(size=(30, 30, 3)).astype(np.float32)
    points[::2, :, 2] *= 0.02
    return {"points": points, "y": np.arange(30) % 2}


def two_blocks() -> dict[str, Any]:
    """Two sets of 30 nodes with many edges within and few between them."""
    src, dst = RANDOM.integers(0, 60, (2, 600))
    keep = (src != dst) & ((src < 30) == (dst < 30))
    return {
        "src": src[keep], "dst": dst[keep], "num_nodes": np.int64(60), "y": np.arange(60) // 30,
        "feat": RANDOM.normal(size=(60, 5)) + (np.arange(60) // 30)[:, None],
    }  # fmt: skip


CASES: dict[str, tuple[Callable[[], dict[str, Any]], str, dict[str, Any]]] = {
    "classes": (rings, "graph", {"model": "gin", "batch": 8}),
    "numbers": (numbers, "graph", {"model": "gcn", "batch": 8}),
    "flags": (flags, "graph", {"model": "sage", "batch": 8}),
    "points": (clouds, "points", {"model": "dgcnn", "batch": 5}),
    "lightgcn": (choices, "recommend", {"model": "lightgcn", "batch": 64}),
    "gcmc": (choices, "recommend", {"model": "gcmc", "batch": 64}),
    "sampled": (two_blocks, "node", {"model": "sage", "batch": 12, "fanout": (5, 5)}),
    "sampled gcn": (two_blocks, "node", {"model": "gcn", "batch": 12, "fanout": (3, 3)}),
    **{f"link {name}": (two_blocks, "link", {"model": "sage", "batch": 64, "links": Links(name, negatives=2)})
       for name in PAIR_DECODERS},
}  # fmt: skip


def case(name: str, folder: Path) -> tuple[TrainingJob, Data]:
    make, task, options = CASES[name]
    file = folder / "data.npz"
    np.savez(file, **make())
    data = load(str(file), symmetric=True, seed=0) if task in ("node", "link") else load_for(task, str(file), seed=0)
    fields = {"hidden": 8, "heads": 1, "dropout": 0.2, "lr": 0.01, "weight_decay": 0.0, "epochs": 4, "seed": 0,
              "threads": 1, "task": task}  # fmt: skip
    return TrainingJob(**(fields | options)), data


@pytest.mark.parametrize("name", by_default(CASES, "lightgcn", "sampled"))
def test_compiled_training_goes_as_eager_training(name: str, tmp_path: Path) -> None:
    job, data = case(name, tmp_path)
    job = replace(job, dropout=0.0, lr=1e-3)  # Adam makes steps of that size of rounding noise, too
    losses, found = [], []
    for way in ("eager", "graphweave"):
        training = start(way, job, data)
        for _ in range(2):
            training.epoch()
        losses.append(training.history.loss)
        found.append(training.test())
        assert set(training.baseline()) == set(found[-1])
    np.testing.assert_allclose(*losses, rtol=2e-3)
    for measure, value in found[0].items():
        assert found[1][measure] == pytest.approx(value, abs=0.11), measure  # an item or two of a small split


@pytest.mark.parametrize("name", CASES)
def test_a_resumed_training_gives_the_same_numbers(name: str, tmp_path: Path) -> None:
    job, data = case(name, tmp_path)
    torch.manual_seed(1)
    whole = start("eager", job, data)
    for _ in range(4):
        whole.epoch()
    torch.manual_seed(1)
    first = start("eager", job, data)
    for _ in range(2):
        first.epoch()
    save(tmp_path / "kept", job, data.name, [first])
    torch.manual_seed(5)
    second = start("eager", job, data)
    assert resume(tmp_path / "kept", replace(job, epochs=9), data.name, [second]) == 2
    for _ in range(2):
        second.epoch()
    assert second.history.loss == whole.history.loss
    assert second.history.val == whole.history.val
    assert second.test() == whole.test()


def test_resumed_kernels_drop_the_same_rows(tmp_path: Path) -> None:
    job, data = case("sampled", tmp_path)
    whole = start("graphweave", job, data)
    for number in range(3):
        whole.epoch()
        if number == 0:
            save(tmp_path / "kept", job, data.name, [whole])
    again = start("graphweave", job, data)
    resume(tmp_path / "kept", job, data.name, [again])
    for _ in range(2):
        again.epoch()
    assert again.history.loss == whole.history.loss


@pytest.mark.parametrize("change", ["options", "data", "ways", "damaged", "no table", "absent", "file"])
def test_a_checkpoint_of_another_training_is_refused(change: str, tmp_path: Path) -> None:
    job, data = case("classes", tmp_path)
    training = start("eager", job, data)
    training.epoch()
    file = tmp_path / "kept"
    save(file, job, data.name, [training])
    if change == "damaged":
        (tensors,) = (file / "snapshot-1").glob("*.distcp")
        tensors.write_bytes(tensors.read_bytes()[:-200])
    if change == "no table":
        (file / "snapshot-1" / ".metadata").write_bytes(b"")
    if change == "absent":
        shutil.rmtree(file)
    if change == "file":
        shutil.rmtree(file)
        file.write_bytes(b"")
    words = {
        "options": r"its options are \{'lr': 0.01\} \(given: \{'lr': 0.5\}\)", "data": "its data are", "ways":
        "its ways are", "damaged": "damaged", "no table": "damaged", "absent": "no such checkpoint", "file":
        "is a file",
    }  # fmt: skip
    with pytest.raises(DataError, match=words[change]):
        resume(
            file,
            replace(job, lr=0.5) if change == "options" else job,
            "other" if change == "data" else data.name,
            [training, training] if change == "ways" else [training],
        )


def test_the_command_trains_keeps_and_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.savez(tmp_path / "rings.npz", **rings())
    kept = tmp_path / "kept"
    given = ["train", "--task", "graph", "--data", str(tmp_path / "rings.npz"), "--hidden", "8", "--no-compile"]
    assert main([*given, "--epochs", "2", "--checkpoint", str(kept)]) == 0
    out = capsys.readouterr().out
    assert "gin on rings.npz: 40 graphs, 180 nodes, 360 edges, 3 features, 2 classes" in out
    assert "baseline" in out and "epoch 2/2" in out
    assert main([*given, "--epochs", "3", "--resume", str(kept)]) == 0
    out = capsys.readouterr().out
    assert "epoch 3/3" in out and "epoch 2/3" not in out


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--task", "graph"], "--task graph needs --data FILE.npz"),
        (["--task", "graph", "--data", "digits"], "--data must be FILE.npz for --task graph (got 'digits')"),
        (["--task", "graph", "--data", "nowhere.npz"], "nowhere.npz: no such file"),
        (["--task", "points", "--model", "gat", "--data", "a.npz"], "--task points has the models dgcnn (got gat)"),
        (["--task", "node", "--fanout", "5,5"], "--fanout is for --task node with --batch"),
        (["--task", "node", "--batch", "8", "--fanout", "5"], "fanout must have one number for each of 2 layers"),
        (["--task", "node", "--batch", "8", "--fanout", "5,x"], "must be whole numbers, -1 for all neighbours"),
        (["--task", "link", "--data", "karate", "--decoder", "rotate"], "--decoder must be one of dot, bilinear, mlp"),
        (["--resume", "nothing.pt", "--data", "karate"], "nothing.pt: no such checkpoint"),
        (["--task", "node", "--model", "rgcn"], "a knowledge graph has no labels of nodes"),
    ],
)
def test_bad_arguments_get_one_line(argv: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        status = main(["train", *argv])
    except SystemExit as exit:
        status = exit.code  # type: ignore[assignment]
    captured = capsys.readouterr()
    assert status == 2 and captured.out == "" and captured.err.count("\n") == 1
    assert message in captured.err


@pytest.mark.parametrize(
    ("read", "make", "change", "message"),
    [
        (graph_set, rings, {"graph_ptr": None}, "array 'graph_ptr' is missing"),
        (graph_set, rings, {"graph_ptr": np.arange(41)}, "must rise from 0 to 180"),
        (graph_set, rings, {"src": np.full(360, 179)}, "an edge joins two graphs"),
        (graph_set, rings, {"y": np.zeros((40, 2, 2))}, r"'y' must be \[graphs\]"),
        (graph_set, rings, {"train_idx": np.arange(3)}, "a split needs train_idx, val_idx and test_idx"),
        (interactions, choices, {"train_item": np.full(9, 99)}, "item 99 in 'train_item' is out of range"),
        (interactions, choices, {"test_user": np.arange(1)}, "must have one length"),
        (point_set, clouds, {"points": np.zeros((30, 5))}, "points must be finite, of shape"),
        (point_set, clouds, {"y": np.arange(30) - 1}, "every cloud needs a class"),
        (point_set, clouds, {"is_test": np.arange(4)}, "'is_test' must have one number for each of 30 clouds"),
    ],
)
def test_bad_files_are_refused(
    read: Callable[..., Any], make: Callable[[], Any], change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    found = {k: v for k, v in (make() | change).items() if v is not None}
    np.savez(tmp_path / "bad.npz", **found)
    with pytest.raises(DataError, match=message):
        read(tmp_path / "bad.npz")


def test_a_batch_of_graphs_is_these_graphs_side_by_side(tmp_path: Path) -> None:
    np.savez(tmp_path / "rings.npz", **rings())
    data = graph_set(tmp_path / "rings.npz")
    batch = data.batch(torch.tensor([3, 0, 7]))
    assert batch.graph.bincount().tolist() == [6, 3, 6] and batch.y.tolist() == [1, 0, 1]
    assert torch.equal(batch.x[6:9], data.x[:3])
    edges = set(zip(*batch.edge_index.tolist(), strict=True))
    want = {(a + i, a + (i + step) % n) for a, n in ((0, 6), (6, 3), (9, 6)) for i in range(n) for step in (-1, 1)}
    assert edges == want


def test_points_of_voxels_lie_on_the_surface(tmp_path: Path) -> None:
    grid = np.zeros((8, 8, 8), dtype=bool)
    grid[1:7, 1:7, 1:7] = True
    packed = np.packbits(grid)[None].repeat(5, 0)
    np.savez(tmp_path / "voxels.npz", grid_packed=packed, grid_shape=np.array([8, 8, 8]), y=np.zeros(5, dtype=int))
    points = point_set(tmp_path / "voxels.npz").points
    assert points.shape == (5, 512, 3) and bool((points.norm(dim=2) <= 1 + 1e-6).all())
    assert float(points.norm(dim=2).min()) > 0.3  # nothing from within the cube


def test_nearest_points_are_of_the_same_cloud() -> None:
    x = torch.tensor([[0.0], [1.0], [3.0], [7.0], [0.0], [1.0], [3.0], [7.0]])
    src, dst = nearest(x, 2, 1)
    assert dst.tolist() == list(range(8)) and src.tolist() == [1, 0, 1, 2, 5, 4, 5, 6]
    assert nearest(x, 2, 20).shape == (2, 24)


def test_recommendations_are_counted_against_what_users_chose() -> None:
    """Two users and 30 items: user 0 wants items 3 and 25, user 1 wants item 0."""
    train = torch.tensor([[0, 1], [29, 29]])
    data = Interactions(train, torch.zeros(2, 0, dtype=torch.int64), torch.tensor([[0, 1, 0], [3, 0, 25]]), 2, 30, "d")
    job = TrainingJob("lightgcn", 4, 1, 0.0, 0.1, 0.0, 1, 0, 1, task="recommend")
    training = RecommenderTraining("eager", job, data)
    found = training._ranked("test", lambda users: -torch.arange(30.0).expand(users.numel(), -1))
    assert found[RECALL] == pytest.approx((0.5 + 1) / 2)
    ideal = 1 + 1 / np.log2(3)
    assert found[NDCG] == pytest.approx((1 / np.log2(5) / ideal + 1) / 2)


def test_the_graph_autoencoder_has_weights_for_each_side() -> None:
    """Against sums edge by edge, in float64; a user without edges keeps a vector of their own."""
    torch.manual_seed(0)
    model = GCMC(3, 2, 4).double()
    users, items = torch.tensor([0, 0, 2]), torch.tensor([0, 1, 1])
    edges = torch.cat([torch.stack([items + 3, users]), torch.stack([users, items + 3])], 1)
    norm = torch.rand(6, dtype=torch.float64)
    got = model(edges, norm)
    for v in range(5):
        sums = torch.zeros(4, dtype=torch.float64)
        for e in range(6):
            if edges[1, e] == v:
                sums += norm[e] * model.embedding[edges[0, e]]
        side = model.users if v < 3 else model.items
        inner = side.own.weight @ model.embedding[v] + side.own.bias + side.other.weight @ sums + side.other.bias
        torch.testing.assert_close(got[v], side.out.weight @ inner.relu() + side.out.bias)


@pytest.mark.parametrize("name", ["sampled", "classes", "lightgcn"])
def test_a_training_goes_on_within_an_epoch(name: str, tmp_path: Path) -> None:
    job, data = case(name, tmp_path)

    def begun(save_after: int | None) -> Any:
        training = start("eager", job, data)
        steps = 0

        def tick(_: float) -> None:
            nonlocal steps
            steps += 1
            if steps == save_after:
                save(tmp_path / "kept", job, data.name, [training])

        for _ in range(2):
            training.epoch(tick)
        return training

    whole = begun(None)
    assert begun(whole.steps + 2).history.loss == whole.history.loss
    again = start("eager", job, data)
    assert resume(tmp_path / "kept", job, data.name, [again]) == 1
    again.epoch()
    assert again.history.loss == pytest.approx(whole.history.loss, rel=1e-12)
    assert again.history.val == whole.history.val and again.test() == whole.test()


def test_two_checkpoints_are_kept_and_what_was_not_finished_is_not_read(tmp_path: Path) -> None:
    job, data = case("classes", tmp_path)
    training = start("eager", job, data)
    folder = tmp_path / "kept"
    for number in range(4):
        (folder / "partial-9").mkdir(parents=True)
        marks.mark(folder / "partial-9", "snapshot")
        training.epoch()
        save(folder, job, data.name, [training])
        assert snapshots.numbers(folder) == [max(number, 1), number + 1][-min(number + 1, 2) :]
        assert not (folder / "partial-9").exists()
    (folder / "partial-5").mkdir()
    assert resume(folder, job, data.name, [start("eager", job, data)]) == 4
