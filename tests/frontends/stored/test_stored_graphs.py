"""Compilations that are restored from disk: they do what the ones did that were stored, to the last bit."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import graphweave
from graphweave.core.counters import counters
from graphweave.core.settings import override
from graphweave.frontends.dynamo import captures_on_disk
from graphweave.frontends.stored import store
from graphweave.frontends.stored.compilation import restore
from graphweave.runtime.entries import ByteStore
from graphweave.runtime.kernel_cache import forget as forget_kernels
from tests import patience
from tests.support import features, random_graph

pytestmark = [
    pytest.mark.usefixtures("fresh_compiler", "folder"),
]

DOORS: dict[str, Callable[..., Any]] = {
    "compile": graphweave.compile,
    "plain": lambda f: torch.compile(f, backend="graphweave", dynamic=True),
}
GRAPH = random_graph(7, 7, 30)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder for compilations. Kernels stay where they are."""
    monkeypatch.setattr(store, "COMPILATIONS", ByteStore(str(tmp_path)))
    monkeypatch.setattr(captures_on_disk, "CAPTURES", ByteStore(str(tmp_path / "captures")))
    with override(store_compilations=True):
        yield tmp_path


def forget() -> None:
    """Forget what this process has compiled, as if it were another one."""
    torch._dynamo.reset()
    graphweave.reset_counters()


def restored() -> tuple[int, int]:
    """The graphs that were restored, and those that were compiled."""
    return counters()["restored_graphs"], counters()["compilations"]


class Attention(nn.Module):
    """A layer of attention with a norm and dropout, whose second result a loss may leave out."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.lin, self.bias, self.side = nn.Linear(8, 8), nn.Parameter(torch.zeros(8)), nn.Linear(8, 3)
        self.norm = nn.BatchNorm1d(8)
        self.drop = nn.Dropout(0.4)
        self.to(dtype)

    def forward(self, x: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
        src, dst = index[0], index[1]
        h = self.drop(self.lin(x))
        score = torch.nn.functional.leaky_relu((h[src] * h[dst]).sum(-1)).exp()
        total = torch.zeros(x.shape[0], dtype=x.dtype).index_add(0, dst, score)
        weight = score / (total[dst] + 1e-6)
        out = torch.zeros_like(h).index_add(0, dst, weight.unsqueeze(-1) * h[src])
        return self.norm(out + self.bias).relu(), self.side(h)


def step(door: str, of: Callable[[tuple[Tensor, Tensor]], Tensor], *, dtype: torch.dtype = torch.float32, rows: int = 7,
         graph: Tensor = GRAPH, train: bool = True) -> list[Tensor | None]:  # fmt: skip
    """The results and gradients of a step of training, or of an evaluation."""
    torch.manual_seed(3)
    layer = Attention(dtype)
    layer.train(train)
    x = features(rows, 8, dtype).requires_grad_()
    compiled = DOORS[door](layer)
    with torch.set_grad_enabled(train):
        out = compiled(x, graph)
    if train:
        of(out).backward()
    return [*out, x.grad, *(p.grad for p in layer.parameters()), *layer.norm.buffers()]


def assert_same(found: list[Any], expected: list[Any]) -> None:
    for one, other in zip(found, expected, strict=True):
        assert (one is None) == (other is None)
        assert one is None or torch.equal(one, other)


def whole(out: tuple[Tensor, Tensor]) -> Tensor:
    return out[0].sin().sum() + out[1].square().sum()


def first_alone(out: tuple[Tensor, Tensor]) -> Tensor:
    return out[0].sin().sum()


@pytest.mark.parametrize("door", DOORS)
def test_a_step_is_the_same_from_disk(door: str) -> None:
    expected = step(door, whole)
    assert restored()[0] == 0
    forget()
    assert_same(step(door, whole), expected)
    assert restored() == (1, 0)


def test_gradients_that_a_loss_leaves_out_stay_none() -> None:
    expected = step("compile", first_alone)
    forget()
    found = step("compile", first_alone)
    assert_same(found, expected)
    assert restored() == (1, 0)
    assert sum(g is None for g in found) == 2  # of the second result's own weights


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_dtypes(dtype: torch.dtype) -> None:
    expected = step("compile", whole, dtype=dtype)
    forget()
    assert_same(step("compile", whole, dtype=dtype), expected)
    assert restored() == (1, 0)


def test_an_evaluation_is_an_entry_of_its_own() -> None:
    expected = step("compile", whole), step("compile", whole, train=False)
    forget()
    assert_same(step("compile", whole), expected[0])
    assert_same(step("compile", whole, train=False), expected[1])
    assert restored() == (2, 0)


def test_other_sizes_than_at_first() -> None:
    """The stored form takes other sizes in the same process, and in another one without planning again."""
    step("compile", whole)
    forget()
    graph = random_graph(6, 6, 26)
    found = step("compile", whole, rows=6, graph=graph)
    assert restored() == (1, 0)
    with override(store_compilations=False):
        forget()
        assert_same(found, step("compile", whole, rows=6, graph=graph))


def test_a_graph_without_edges() -> None:
    graph = torch.zeros(2, 0, dtype=torch.long)
    step("compile", whole)
    forget()
    found = step("compile", whole, graph=graph)
    with override(store_compilations=False):
        forget()
        assert_same(found, step("compile", whole, graph=graph))


def energy(x: Tensor, w: Tensor) -> Tensor:
    message = torch.tanh(x[GRAPH[0]] @ w) * torch.sigmoid(x[GRAPH[1]])
    return torch.zeros_like(x).index_add(0, GRAPH[1], message)


def orders() -> list[Tensor]:
    x, w = features(7, 3, torch.float64).requires_grad_(), features(3, 3, torch.float64).requires_grad_()
    out = graphweave.compile(energy)(x, w).pow(3).sum()
    found = list(torch.autograd.grad(out, [x, w], create_graph=True))
    return [*found, *torch.autograd.grad(found[0].pow(2).sum() + found[1].sum(), [x, w])]


def test_gradients_of_gradients() -> None:
    """The graph of the gradients is made of bytes, and compiled anew, so that its sums may be in another order."""
    expected = orders()
    forget()
    for one, other in zip(orders(), expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-10)
    assert restored() == (1, 1)


def infinite(x: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
    h = x * 2
    out = torch.zeros_like(h).index_add(0, index[1], h[index[0]])
    return out, h.norm(dim=-1)


def test_zero_times_an_infinite_derivative_is_left_out() -> None:
    def gradient() -> Tensor:
        x = torch.zeros(7, 3, requires_grad=True)
        graphweave.compile(infinite)(x, GRAPH)[0].sum().backward()
        assert x.grad is not None
        return x.grad

    expected = gradient()
    forget()
    assert torch.equal(gradient(), expected)
    assert expected.isfinite().all()
    assert restored() == (1, 0)


def scaled(x: Tensor, index: Tensor, factor: float) -> Tensor:
    return torch.zeros_like(x).index_add(0, index[1], x[index[0]] * factor)


def test_another_constant_is_another_entry() -> None:
    x = features(7, 4)
    for _ in range(2):
        torch.testing.assert_close(graphweave.compile(scaled)(x, GRAPH, 2.0), scaled(x, GRAPH, 2.0))
        torch._dynamo.reset()
        torch.testing.assert_close(graphweave.compile(scaled)(x, GRAPH, 3.0), scaled(x, GRAPH, 3.0))
        torch._dynamo.reset()
    assert sum(restored()) == 4
    assert restored()[0] >= 2


def small_or_large(x: Tensor, index: Tensor) -> Tensor:
    out = torch.zeros_like(x).index_add(0, index[1], x[index[0]])
    return out * 2 if x.shape[0] > 100 else out


def test_guards_hold_again() -> None:
    """Which branch was taken depends on a size: the restored function is guarded as the compiled one was."""
    for rows in (90, 110):  # of about one size, to a factor of two
        x, graph = features(rows, 4), random_graph(rows, rows, 200)
        for _ in range(2):
            forget()
            compiled = graphweave.compile(small_or_large)
            torch.testing.assert_close(compiled(x, graph), small_or_large(x, graph))
        for other in (80, 120):
            x, graph = features(other, 4), random_graph(other, other, 200)
            torch.testing.assert_close(compiled(x, graph), small_or_large(x, graph))


@pytest.mark.parametrize(
    "change",
    [{"options": {"rewrite": False}}, {"options": {"recompute": "never"}}, {"options": {"fuse": False}}],
    ids=str,
)
def test_other_options_miss(change: dict[str, Any]) -> None:
    x = features(7, 8)
    layer = Attention().eval()
    graphweave.compile(layer)(x, GRAPH)
    forget()
    graphweave.compile(layer, **change)(x, GRAPH)
    assert restored() == (0, 1)


def evaluated() -> None:
    graphweave.compile(Attention().eval())(features(7, 8), GRAPH)


@pytest.mark.parametrize("switch", [{"unseen_edits": False}, {"store_compilations": False}], ids=str)
def test_other_settings_miss(switch: dict[str, Any]) -> None:
    evaluated()
    forget()
    with override(**switch):
        evaluated()
    assert restored() == (0, 1)


def test_other_modes_miss() -> None:
    evaluated()
    for mode in (torch.no_grad(), torch.inference_mode()):
        forget()
        with mode:
            evaluated()
        assert restored()[0] == 0


def test_an_edit_of_the_compiler_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    evaluated()
    forget()
    monkeypatch.setattr("graphweave.frontends.stored.state_key._versions", lambda: "another")
    evaluated()
    assert restored() == (0, 1)


def left(x: Tensor) -> Tensor:
    return x + 1


def test_a_graph_that_gains_nothing_is_known(caplog: pytest.LogCaptureFixture) -> None:
    for expected in (1, 0):
        forget()
        assert torch.equal(graphweave.compile(left)(torch.ones(3)), torch.full((3,), 2.0))
        assert counters()["compilations"] == expected


def test_requests_for_a_report_compile_afresh() -> None:
    layer, x = Attention().eval(), features(7, 8)
    graphweave.compile(layer)(x, GRAPH)
    forget()
    assert "1 graph" in str(graphweave.explain(layer, x, GRAPH))
    assert restored() == (0, 1)


@pytest.mark.parametrize("options", [{"verify": True}, {"cuda_graphs": True}], ids=str)
def test_what_asks_for_more_is_not_stored(options: dict[str, Any]) -> None:
    for _ in range(2):
        forget()
        graphweave.compile(Attention().eval(), options=options)(features(7, 8), GRAPH)
        assert restored() == (0, 1)
        assert counters()["unstored_graphs"] == 1


# ---------------------------------------------------------------- files


def entry(folder: Path) -> Path:
    (path,) = folder.glob("*.bin")
    return path


@pytest.mark.parametrize("damage", ["truncate", "flip", "no digest", "others may write"])
def test_damaged_entries_are_made_again(folder: Path, damage: str, caplog: pytest.LogCaptureFixture) -> None:
    evaluated()
    path = entry(folder)
    data = bytearray(path.read_bytes())
    match damage:
        case "truncate":
            path.write_bytes(data[:99])
        case "flip":
            data[len(data) // 2] ^= 1
            path.write_bytes(data)
        case "no digest":
            path.with_suffix(".sha256").unlink()
        case "others may write":
            path.chmod(0o777)
    captures_on_disk.CAPTURES.folder.rename(folder / "no captures")  # they have the graphs' bytes, too
    forget()
    with caplog.at_level(logging.WARNING):
        evaluated()
    assert restored() == (0, 1)
    assert "damaged" in caplog.text
    forget()
    evaluated()
    assert restored() == (1, 0)


def test_kernels_that_are_gone_are_compiled_again(tmp_path: Path) -> None:
    expected = step("compile", whole)
    forget()
    forget_kernels()
    with override(cache_dir=tmp_path / "elsewhere"):
        assert_same(step("compile", whole), expected)
    assert restored() == (1, 0)
    assert counters()["kernel_builds"] > 0
    forget_kernels()


def test_a_folder_that_cannot_be_written_costs_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    blocker = tmp_path / "file"
    blocker.write_text("not a folder")
    monkeypatch.setattr(store, "COMPILATIONS", ByteStore(str(blocker)))
    with caplog.at_level(logging.WARNING):
        evaluated()
        forget()
        evaluated()
    assert caplog.text.count("cannot keep compilations in") == 1


def test_bytes_become_the_function_without_a_trace(folder: Path) -> None:
    """What a store of whole captures uses: the bytes of a graph make its function outside of any trace."""
    evaluated()
    content = store.COMPILATIONS.read(entry(folder).stem)
    assert content is not None
    forget()
    made = restore(content)
    assert made is not None
    assert restored() == (1, 0)
    with torch.autocast("cpu", torch.bfloat16):
        assert restore(content) is None


# ---------------------------------------------------------------- processes


def environment() -> dict[str, str]:
    root = str(Path(__file__).parents[3])
    path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
    return {**os.environ, "GRAPHWEAVE_STORE_COMPILATIONS": "1", "PYTHONPATH": path}


def digest(values: list[Tensor | None]) -> str:
    return " ".join("-" if t is None else t.detach().contiguous().numpy().tobytes().hex() for t in values)


def test_another_process_gets_the_same_bits(folder: Path) -> None:
    expected = digest(step("compile", first_alone))
    program = (
        "import tests.frontends.stored.test_stored_graphs as t\n"
        f"t.store.COMPILATIONS = t.ByteStore({str(folder)!r})\n"
        "print(t.digest(t.step('compile', t.first_alone)))\n"
        "print(t.restored())\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program], env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    out, errors = patience.outputs(process)
    assert process.returncode == 0, errors
    assert out.splitlines() == [expected, "(1, 0)"]
