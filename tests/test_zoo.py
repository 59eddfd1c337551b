"""Every convolution and model of PyG through the compiler: all under the marker `zoo`, some of them every time."""

from __future__ import annotations

import pytest
import torch_geometric.nn.conv
import torch_geometric.nn.models

from bench.zoo import RIGHT, Row, markdown, run_case
from bench.zoo_cases import CASES, NOT_HERE, SMALL

pytestmark = pytest.mark.usefixtures("fresh_compiler")

NO_OPERATOR = {"MessagePassing", "to_captum_model", "to_captum_input", "captum_output_to_dicts"}
"""Exported by PyG beside its operators: the base class and functions of the captum explainer."""


USUAL = ("GATv2Conv-edge", "RGCNConv")


@pytest.mark.parametrize("case", [pytest.param(name, marks=() if name in USUAL else pytest.mark.zoo) for name in SMALL])
def test_small(case: str) -> None:
    row = run_case(case)
    assert row.status in RIGHT, f"{row.status}: {row.where} {row.error:.3g}"
    assert row.kernel_launches > 0


@pytest.mark.zoo
@pytest.mark.filterwarnings("default")  # a fallback warns, and so do PyTorch and PyG while odd models are traced
@pytest.mark.parametrize("case", [name for name in CASES if name not in SMALL])
def test_case(case: str) -> None:
    row = run_case(case)
    assert row.status in RIGHT, f"{row.status}: {row.where} {row.error:.3g}"


def test_every_operator_has_a_case_or_a_reason() -> None:
    known = {name.removeprefix("models.").partition("-")[0] for name in CASES} | set(NOT_HERE) | NO_OPERATOR
    exported = {*torch_geometric.nn.conv.__all__, *torch_geometric.nn.models.__all__}
    assert exported - known == set()


def test_the_page_has_a_line_a_case() -> None:
    rows = [Row("one", "ok", 1, 0, 3), Row("two", "crash", eager=("no\ntrace",), fallbacks=("aten.a: b|c", "aten.d"))]
    page = markdown(rows)
    assert "| one | ok | 1 | 0 | 3 |  |" in page
    assert "**whole graph**: no trace<br>aten.a: b\\|c<br>aten.d |" in page
    assert "2 cases: 1 ok, 1 crash; 1 captured as one graph, 1 with a graph left eager" in page
    assert all(f"- {name}: " in page for name in NOT_HERE)
