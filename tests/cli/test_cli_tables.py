"""`graphweave train --target`: one command trains on tables (`graphweave/examples/tables.py`)."""

from __future__ import annotations

import re
from argparse import Namespace
from pathlib import Path

import pytest
import torch

from graphweave.cli.main import main, parser
from graphweave.cli.train import asked
from graphweave.data import TableGraph, shop
from graphweave.examples.tables import TableTraining, check_target

pytest.importorskip("pandas", reason="tables need pandas")
pytest.importorskip("sqlalchemy", reason="databases need SQLAlchemy")


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> str:
    return f"sqlite:///{shop(tmp_path_factory.mktemp('shop') / 'shop.db', num_orders=800)}"


def arguments(*words: str) -> Namespace:
    return parser("train").parse_args(["train", *words])


def measures(out: str) -> dict[str, tuple[float, float]]:
    """Name of a measure -> what was trained and the baseline, of the table that the command prints."""
    found = re.findall(r"test ([\w ]+?) +[│|] +(-?[\d.]+)%? +[│|] +(-?[\d.]+)", out)
    return {name: (float(trained), float(baseline)) for name, trained, baseline in found}


def test_one_command_learns_a_flag(database: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--data", database, "--target", "orders.returned", "--epochs", "6", "--hidden", "32", "--batch", "64"]
    assert main(["train", *words, "--no-compile"]) == 0
    found = measures(capsys.readouterr().out)
    assert found["ROC AUC"][1] == 0.5 and found["ROC AUC"][0] > 0.7
    assert "accuracy" in found


def test_one_command_learns_a_number(database: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--data", database, "--target", "reviews.rating", "--exclude", "reviews.text", "--epochs", "4"]
    assert main(["train", *words, "--hidden", "32", "--no-compile"]) == 0
    found = measures(capsys.readouterr().out)
    assert found["mean absolute error"][0] < 0.9 * found["mean absolute error"][1]
    assert found["R2"][0] > 0.2 > found["R2"][1]
    assert found["root mean squared error"][0] < found["root mean squared error"][1]


def test_text_is_classes_and_the_other_models_run(database: str) -> None:
    for model in ("hgt", "rgat"):
        words = ("--data", database, "--target", "orders.payment", "--model", model, "--hidden", "8", "--no-compile")
        _, job, data = asked(arguments(*words))
        assert isinstance(data, TableGraph)
        training = TableTraining("eager", job, data, check_target(data))
        assert training.measure == "accuracy" and training.step() > 0
        assert set(training.test()) == {"test accuracy"} == set(training.baseline())
        found = training.predictions()
        assert found is not None and found.classes == check_target(data).classes
        assert float((found.predicted == found.true).float().mean()) == pytest.approx(training.test()["test accuracy"])


def test_predicted_numbers_are_in_the_units_of_their_column(database: str) -> None:
    _, job, data = asked(arguments("--data", database, "--target", "reviews.rating", "--hidden", "8", "--no-compile"))
    assert isinstance(data, TableGraph)
    training = TableTraining("eager", job, data, check_target(data))
    found = training.predictions()
    assert found is not None and not found.classes
    error = float((found.predicted - found.true).abs().mean())
    assert error == pytest.approx(training.test()["test mean absolute error"], rel=1e-4)


def test_compiled_is_eager(database: str) -> None:
    """The loss and the gradients of a batch."""
    words = ("--data", database, "--target", "orders.returned", "--hidden", "8", "--dropout", "0", "--batch", "64")
    _, job, data = asked(arguments(*words))
    assert isinstance(data, TableGraph)
    ways = [TableTraining(way, job, data, check_target(data)) for way in ("graphweave", "eager")]
    gradients = []
    for training in ways:
        loss = training.loss(training.sampled.batch(torch.arange(400, 450)))
        loss.backward()
        gradients.append([loss.detach(), *(p.grad for p in training.modules[0].parameters() if p.grad is not None)])
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=2e-4, atol=2e-4)


def test_a_training_goes_on(database: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["train", "--data", database, "--target", "orders.returned", "--hidden", "8", "--no-compile"]
    assert main([*words, "--epochs", "2"]) == 0
    whole = measures(capsys.readouterr().out)
    assert main([*words, "--epochs", "1", "--checkpoint", str(tmp_path / "kept")]) == 0
    capsys.readouterr()
    assert main([*words, "--epochs", "2", "--resume", str(tmp_path / "kept")]) == 0
    assert measures(capsys.readouterr().out) == whole


@pytest.mark.parametrize(
    "words, message",
    [
        (["--target", "orders.nothing"], "has no column 'nothing'"),
        (["--target", "orders"], "expected TABLE.COLUMN"),
        (["--target", "orders.placed_at"], "a target must be numbers, flags or text"),
        (["--target", "orders.returned", "--time", "orders"], "--time must be TABLE.COLUMN"),
        (["--target", "orders.returned", "--time", "orders.payment"], "times must be dates or whole numbers"),
        (["--target", "orders.returned", "--exclude", "x.y"], "expected TABLE.COLUMN"),
        (["--target", "orders.returned", "--split", "2001-01-01,2002-01-01"], "no row is in the training part"),
        (["--target", "orders.returned", "--split", "0.5,0.1,0.1"], "three shares with the sum 1"),
        (["--target", "orders.returned", "--fanout", "3"], "fanout must have one number for each of 2 layers"),
        (["--target", "orders.returned", "--model", "gat"], "--task table has the models"),
        (["--target", "orders.returned", "--symmetric"], "no --symmetric"),
        (["--task", "table"], "--target TABLE.COLUMN"),
        (["--exclude", "orders.payment"], "--exclude is for tables"),
    ],
)
def test_bad_input_is_one_line(
    database: str, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "--data", database, *words]) == 2
    said = capsys.readouterr().err
    assert message in said and said.count("\n") == 1
