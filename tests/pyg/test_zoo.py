"""Every convolution and model of PyG through the compiler, under the marker `zoo`; some run by default."""

from __future__ import annotations

import pytest
import torch_geometric.nn.conv
import torch_geometric.nn.models

from tests.pyg.zoo import DOORS, RIGHT, Row, markdown, run_case
from tests.pyg.zoo_cases import CASES, NOT_HERE, SMALL

pytestmark = pytest.mark.usefixtures("fresh_compiler")

NO_OPERATOR = {"MessagePassing", "to_captum_model", "to_captum_input", "captum_output_to_dicts"}
"""Names that PyG exports beside its operators: the base class, and functions of the captum explainer."""


USUAL = {"compile": ("RGCNConv",), "plain": ("GATv2Conv-edge",)}


SMALL_RUNS = [
    pytest.param(name, door, marks=() if name in USUAL[door] else pytest.mark.zoo, id=f"{name}-{door}")
    for name in SMALL for door in DOORS
]  # fmt: skip


@pytest.mark.parametrize(("case", "door"), SMALL_RUNS)
def test_small(case: str, door: str) -> None:
    row = run_case(case, door)
    assert row.status in RIGHT, f"{row.status}: {row.where} {row.error:.3g}"
    assert row.kernel_launches > 0


@pytest.mark.zoo
@pytest.mark.filterwarnings("default")  # a fallback warns, and so do PyTorch and PyG while odd models are traced
@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("case", [name for name in CASES if name not in SMALL])
def test_case(case: str, door: str) -> None:
    row = run_case(case, door)
    assert row.status in RIGHT, f"{row.status}: {row.where} {row.error:.3g}"


def test_every_operator_has_a_case_or_a_reason() -> None:
    known = {name.removeprefix("models.").partition("-")[0] for name in CASES} | set(NOT_HERE) | NO_OPERATOR
    exported = {*torch_geometric.nn.conv.__all__, *torch_geometric.nn.models.__all__}
    assert exported - known == set()


def test_the_page_has_a_line_a_case() -> None:
    rows = [
        Row("one", "ok", 1, 0, 3), Row("one", "ok", 4, 2, 3, door="plain", eager_calls=1),
        Row("two", "crash", eager=("no\ntrace",), fallbacks=("aten.a: b|c", "aten.d"), on_edges=("aten.e", "aten.f")),
    ]  # fmt: skip
    page = markdown(rows)
    assert "| one | ok | 1 | 0 | 0 | 3 | ok, 4, 2, 1, 0 |  |  |" in page
    assert "| not run, 0, 0, 0, 0 | **whole graph**: no trace<br>aten.e<br>aten.f | aten.a: b\\|c<br>aten.d |" in page
    assert "2 cases: 1 ok, 1 crash; 1 compilations, 0 graph breaks, 0 eager calls; 1 captured as one graph" in page
    assert "1 cases: 1 ok; 4 compilations, 2 graph breaks, 1 eager calls; 0 captured as one graph" in page
    assert all(f"- {name}: " in page for name in NOT_HERE)
