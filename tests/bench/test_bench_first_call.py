"""The benchmark of first calls: its models, its measure, and its table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from bench.first_call import _keep_kernels, measure, rows, seconds
from bench.first_call_cases import CASES, build
from graphweave.core import spans
from graphweave.runtime import toolchain


@pytest.mark.parametrize("name", CASES)
def test_every_model_has_a_loss_and_gradients_in_eager_mode(name: str) -> None:
    case = build(name)
    loss = case.module(*case.arguments)
    loss.backward()
    assert torch.isfinite(loss) and loss.dim() == 0
    assert any(p.grad is not None and bool(p.grad.any()) for p in case.module.parameters())


@pytest.mark.skipif(toolchain.available() is None, reason="no C++ compiler")
def test_the_stages_of_a_call_are_within_it() -> None:
    found = measure("graphweave", build("gcn-2"))
    assert found["status"] == "ok" and found["first"] > found["warm"] > 0
    own = {stage: s for stage, s in found["stages"].items() if "other threads" not in stage}
    assert {spans.DYNAMO, spans.AOT_AUTOGRAD, spans.PLAN} <= set(own) and sum(own.values()) <= found["first"]


def test_a_wrong_loss_is_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    case = build("gcn-2")
    monkeypatch.setattr(torch, "compile", lambda module, **_: lambda *given: 2 * module(*given))
    assert measure("eager", case)["status"].startswith("wrong: the loss is off by 1.0e+00")


def answer(load: float, first: float) -> dict[str, Any]:
    return {"status": "ok", "load": load, "first": first, "warm": 0.5}


def test_the_table_has_medians_and_their_ratio_to_tracing() -> None:
    results = [
        {"case": "a", "system": system, "cores": 2, "runs": {"cold": answer(1.0, first)}}
        for system, first in [("aot_eager", 3.5), ("graphweave", 6.5), ("graphweave", 8.5), ("graphweave", 7.5)]
    ]
    other = {"case": "a", "system": "eager", "cores": 1, "runs": {"cold": answer(0.0, 1.0)}}
    want = [["a", "aot_eager", "cold", "4.00", "1.00"], ["a", "graphweave", "cold", "8.00", "2.00"]]
    assert rows([*results, other], 2) == want
    failed = {"case": "a", "system": "inductor", "cores": 2, "runs": {"cold": {"status": "exit 1: no"}}}
    assert rows([failed], 2) == [["a", "inductor", "cold", "exit 1: no", ""]]
    assert seconds([]) is None


def test_only_kernels_are_kept_on_disk(tmp_path: Path) -> None:
    for name in ("graphweave/kernels/k.so", "graphweave/tuned/t.json", "inductor/a.py"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).touch()
    _keep_kernels(tmp_path)
    kept = [path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()]
    assert kept == ["graphweave/kernels/k.so"]
