"""Data parallel training under Ray Train, which starts ranks, lets them meet, and starts them again after a failure.

    python examples/train_ray.py --workers 2 --checkpoint kept -- --task graph --data mol_tox21.npz --batch 256

What stands after `--` are other arguments of `graphweave train`. Needs `pip install "ray[train]"`. All workers write to
one checkpoint, so its path must lead to the same folder on every machine. Ranks that are started again go on from it.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

import ray
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer

from graphweave.cli.main import main


def rank(config: dict[str, Any]) -> None:
    """One rank. Ray has made the process group, which `graphweave train` uses as it is."""
    os.chdir(config["folder"])
    arguments = config["arguments"]
    if config["checkpoint"]:
        kept = any(Path(config["checkpoint"]).glob("snapshot-*"))
        arguments = [*arguments, "--resume" if kept else "--checkpoint", config["checkpoint"]]
    status = main(["train", *arguments])
    if status != 0:
        raise SystemExit(status)


def train(workers: int, arguments: list[str], checkpoint: str | None = None, retries: int = 0) -> None:
    """Run `graphweave train` on `workers` processes, each with one CPU. After a failure Ray starts all of them again,
    up to `retries` times."""
    trainer = TorchTrainer(
        rank,
        train_loop_config={"folder": os.getcwd(), "arguments": arguments, "checkpoint": checkpoint},
        scaling_config=ScalingConfig(num_workers=workers, resources_per_worker={"CPU": 1}),
        torch_config=TorchConfig(backend="gloo"),
        run_config=RunConfig(failure_config=FailureConfig(max_failures=retries)),
    )
    trainer.fit()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--checkpoint", help="folder that keeps what continues the training")
    parser.add_argument("--retries", type=int, default=0, help="times that Ray starts the ranks again")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="-- and the arguments of `graphweave train`")
    asked = parser.parse_args()
    ray.init(ignore_reinit_error=True)
    train(asked.workers, [a for a in asked.arguments if a != "--"], asked.checkpoint, asked.retries)
