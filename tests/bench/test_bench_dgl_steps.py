"""The steps of DGL's peers, with `graphweave.dgl` in DGL's place, compute what the other peers compute."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

from bench import ops, relational, sampling
from bench.case import Case
from bench.spec_peers import case_of
from bench.specs import SPECS, Spec
from bench.steps import result_of
from graphweave.core.settings import override
from tests.support import by_default

HERE = Path()


@pytest.fixture(autouse=True)
def in_place_of_dgl(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("dgl", "dgl.nn", "dgl.function", "dgl.ops", "dgl.dataloading"):
        monkeypatch.setitem(sys.modules, name, import_module(f"graphweave.{name}"))
    kernels = ModuleType("dgl.backend.pytorch")  # whose calls `moved_by` counts
    kernels.sparse = ModuleType("sparse")  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, kernels.__name__, kernels)
    for name in ("dgl_models", "dgl_specs", "ops_dgl", "relational_dgl", "sampling_dgl", "papers.dgl_bytes"):
        monkeypatch.delitem(sys.modules, f"bench.{name}", raising=False)
    with override(eager_kernels=False):
        yield


def compare(case: Case, peer: str, module: str) -> None:
    """Compares the step as the process of DGL would get it: from the arrays, and from plain sizes."""
    sizes = {**case.sizes, **case.small}
    assert case.inputs is not None
    plain = {name: value for name, value in sizes.items() if isinstance(value, str | int | float)}
    step = import_module(module).step_of(peer, dict(case.inputs(**sizes)), **plain)
    peers = case.build(**sizes)
    want = result_of(peers[case.check.others.get(peer, case.check.reference)]()())
    verdict = case.check.verdict(result_of(step()), want)
    assert verdict["status"] == "ok", (case.name, peer, verdict)


RELATIONAL = [
    f"{model} {mode} {peer}"
    for peer in ("dgl", "dgl-hetero", "dgl-udf")
    for model in relational.SYSTEMS[peer]
    for mode in ("infer", "train")
]


@pytest.mark.parametrize("name", by_default(RELATIONAL, "hgt train dgl-udf", "rgat train dgl-hetero"))
def test_relational_layers(name: str) -> None:
    model, mode, peer = name.split()
    options = Namespace(data_dir=HERE, quick=True, memory_gb=1.0, memory_graphs=())
    compare(relational.case_of(model, "tiny", mode, options, (peer,)), peer, relational.BENCH.dgl or "")


@pytest.mark.parametrize("operator", by_default(ops.CASES, "mlp", "attend"))
def test_operators(operator: str) -> None:
    compare(ops.case_of(operator, "rmat:300:2000", 8, HERE), "dgl", ops.BENCH.dgl or "")


MODELS = ("gcn", "sage", "gin", "gat", "gatv2", "monet")
"""Not edgeconv: DGL's layer takes differences with the other sign than its documents and `graphweave.nn.EdgeConv`."""


@pytest.mark.parametrize("model", by_default(MODELS, "gat", "monet"))
def test_models(model: str) -> None:
    compare(case_of(model, SPECS[model], "train", HERE, ("dgl",)), "dgl", "bench.dgl_specs")


@pytest.mark.parametrize("mode", ["infer", "train"])
def test_functions_of_users(mode: str) -> None:
    compare(case_of("gat", Spec("udf-gat"), mode, HERE, ("dgl-udf",)), "dgl-udf", "bench.dgl_specs")


def test_weighted_relations() -> None:
    """A model of the papers; the small graph of the case is not one of its graphs."""
    case = case_of("rgcn", Spec("rgcn", "weighted:30:90:3", 1, (4, 5)), "train", HERE, ("dgl",))
    whole = Case(case.name, case.build, case.peers, case.check, case.sizes, inputs=case.inputs)
    compare(whole, "dgl", "bench.dgl_specs")


def test_sampled_blocks() -> None:
    (case, *_) = sampling.cases(Namespace(nodes=2_000, edges=20_000, threads=1))
    assert isinstance(case, Case)
    compare(case, "dgl", sampling.BENCH.dgl or "")
