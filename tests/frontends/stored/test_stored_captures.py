"""Captures on disk: a function that was traced once is not traced again, and an edit of what was traced is seen."""

from __future__ import annotations

import copy
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._dynamo.utils import counters as dynamo_counters
from torch._logging._internal import LazyTraceHandler, trace_log

import graphweave
from graphweave.core.counters import counters
from graphweave.core.settings import override
from graphweave.frontends.captures import guards, keep
from graphweave.frontends.captures.digests import Digests, Unknown
from graphweave.frontends.dynamo import captures_on_disk
from graphweave.frontends.stored import state_key, store
from graphweave.runtime.entries import ByteStore
from tests import patience
from tests.support import features, random_graph

GRAPH = random_graph(7, 7, 30)
SCALE = 2.0

pytestmark = pytest.mark.usefixtures("fresh_compiler", "folder")


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """An empty folder for captures, in `captures`, and for compilations. Kernels stay where they are."""
    traced_and_restored()  # forgets what other tests of this process have traced
    with kept_in(tmp_path):
        yield tmp_path


@pytest.fixture(scope="module")
def with_layer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the capture of a step of `Layer`."""
    path = tmp_path_factory.mktemp("layer")
    with kept_in(path):
        run(made())
    return path


@pytest.fixture
def layer_on_disk(folder: Path, with_layer: Path) -> None:
    """The capture of `Layer` is in the folder, and this process has compiled nothing yet."""
    shutil.copytree(with_layer, folder, dirs_exist_ok=True)
    forget()


@contextmanager
def kept_in(path: Path) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch, override(store_compilations=True):
        patch.setattr(store, "COMPILATIONS", ByteStore(str(path / "compilations")))
        patch.setattr(captures_on_disk, "CAPTURES", ByteStore(str(path / "captures")))
        yield


def scaled(x: Tensor) -> Tensor:
    return x * SCALE


def shifted(x: Tensor) -> Tensor:
    return x * SCALE + 1


class Layer(nn.Module):
    """A layer whose trace depends on itself, on a function, on globals, on attributes and on other modules."""

    power = 2

    def __init__(self, slope: float = 0.25) -> None:
        super().__init__()
        self.lin, self.norm, self.slope = nn.Linear(8, 8), nn.BatchNorm1d(8), slope
        self.calls = 0

    def forward(self, x: Tensor, index: Tensor) -> Tensor:
        message = F.leaky_relu(scaled(self.lin(x))[index[0]], self.slope) ** self.power
        return self.norm(torch.zeros_like(x).index_add(0, index[1], message))


class Sub(Layer):
    def forward(self, x: Tensor, index: Tensor) -> Tensor:
        return super().forward(x, index) + 1


class Counting(Layer):
    def forward(self, x: Tensor, index: Tensor) -> Tensor:
        self.calls += 1
        return super().forward(x, index) * self.calls


def forget() -> None:
    """Forget what this process has compiled, as if it were another one."""
    torch._dynamo.reset()
    traced_and_restored()


def traced_and_restored() -> tuple[int, int]:
    """How many frames PyTorch has traced, and how many were found on disk, since the last question."""
    found = dynamo_counters["stats"]["unique_graphs"], counters()["restored_captures"]
    dynamo_counters.clear()
    graphweave.reset_counters()
    return found


def made(kind: Callable[[], nn.Module] = Layer) -> nn.Module:
    torch.manual_seed(5)
    return kind().double()


def run(module: nn.Module, *, rows: int = 7, graph: Tensor = GRAPH) -> nn.Module:
    """A step of the compiled module, which is compared with one of PyTorch's own."""
    compiled, eager = graphweave.compile(module), copy.deepcopy(module)
    compare(compiled, eager, rows=rows, graph=graph)
    return compiled


def compare(compiled: nn.Module, eager: nn.Module, *, rows: int = 7, graph: Tensor = GRAPH) -> None:
    found, expected = (step(m, rows, graph) for m in (compiled, eager))
    for one, other in zip(found, expected, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            torch.testing.assert_close(one, other)


def step(module: nn.Module, rows: int, graph: Tensor) -> list[Tensor | None]:
    module.zero_grad()
    x = features(rows, 8, next(module.parameters()).dtype).requires_grad_()
    out = module(x, graph)
    if out.requires_grad:
        out.sin().sum().backward()
    return [out.detach(), x.grad, *(p.grad for p in module.parameters())]


def test_a_second_function_is_not_traced() -> None:
    traced_and_restored()
    run(made())
    assert traced_and_restored() == (1, 0)
    forget()
    run(made())
    assert traced_and_restored() == (0, 1)


def test_results_and_gradients_are_the_same_to_the_last_bit() -> None:
    first = step(graphweave.compile(made()), 7, GRAPH)
    forget()
    second = step(graphweave.compile(made()), 7, GRAPH)
    assert traced_and_restored() == (0, 1)
    assert all(a is None if b is None else torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_random_numbers_are_those_of_a_trace() -> None:
    def drawn() -> Tensor:
        torch.manual_seed(1)
        return graphweave.compile(with_dropout)(features(7, 8), GRAPH)

    expected = drawn()
    forget()
    assert torch.equal(drawn(), expected)
    assert traced_and_restored() == (0, 1)


def with_dropout(x: Tensor, index: Tensor) -> Tensor:
    return torch.zeros_like(x).index_add(0, index[1], F.dropout(x, 0.5)[index[0]])


@pytest.mark.usefixtures("layer_on_disk")
def test_other_sizes_are_found() -> None:
    run(made(), rows=6, graph=random_graph(6, 6, 26))
    assert traced_and_restored() == (0, 1)


@pytest.mark.usefixtures("layer_on_disk")
def test_nothing_is_found_while_pytorch_writes_its_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    handler = LazyTraceHandler(str(tmp_path / "trace"))
    monkeypatch.setattr(trace_log, "handlers", [handler])
    run(made())
    handler.close()
    assert traced_and_restored() == (1, 0)


EDITS: dict[str, Callable[[pytest.MonkeyPatch], Any]] = {
    "the method": lambda m: m.setattr(Layer, "forward", lambda self, x, index: self.lin(x)[index[0]].sum(0) + x),
    "a function": lambda m: m.setattr(sys.modules[__name__], "scaled", shifted),
    "its code": lambda m: m.setattr(scaled, "__code__", shifted.__code__),
    "a global number": lambda m: m.setattr(sys.modules[__name__], "SCALE", 3.0),
    "an attribute of the class": lambda m: m.setattr(Layer, "power", 3),
    "a function of PyTorch's": lambda m: m.setattr(F, "leaky_relu", lambda x, slope: x - slope),
    "a method of PyTorch's": lambda m: m.setattr(nn.Linear, "forward", lambda self, x: x + self.bias),
}


@pytest.mark.usefixtures("layer_on_disk")
@pytest.mark.parametrize("edit", EDITS)
def test_an_edit_is_seen(edit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    EDITS[edit](monkeypatch)
    run(made())
    assert traced_and_restored() == (1, 0)


def hooked() -> nn.Module:
    layer = Layer()
    layer.lin.register_forward_hook(lambda module, args, out: out + 1)
    return layer


def frozen() -> nn.Module:
    layer = Layer()
    layer.lin.weight.requires_grad_(False)
    return layer


def patched() -> nn.Module:
    layer = Layer()
    layer.lin.forward = lambda x: x + 1  # type: ignore[method-assign]
    return layer


@pytest.mark.usefixtures("layer_on_disk")
@pytest.mark.parametrize(
    "other",
    [lambda: made(Sub), lambda: made(hooked), lambda: made(frozen), lambda: made(patched),
     lambda: made(lambda: Layer(0.5)), lambda: made().eval(), lambda: made().float()],
    ids=["subclass", "hook", "frozen weight", "patched method", "attribute", "evaluation", "dtype"],
)  # fmt: skip
def test_another_module_is_traced(other: Callable[[], nn.Module]) -> None:
    run(other())
    assert traced_and_restored() == (1, 0)
    forget()
    run(made())
    assert traced_and_restored() == (0, 1)


CHANGES: dict[str, Callable[[nn.Module], Any]] = {
    "attribute": lambda m: setattr(m, "slope", 0.75),
    "evaluation": lambda m: m.eval(),
    "hook": lambda m: m.lin.register_forward_hook(lambda module, args, out: out * 2),
    "weight": lambda m: setattr(m.lin, "weight", nn.Parameter(torch.ones(8, 8, dtype=torch.float64))),
    "frozen": lambda m: m.lin.weight.requires_grad_(False),
    "dtype": lambda m: m.float(),
    "module": lambda m: setattr(m, "lin", nn.Sequential(nn.Linear(8, 8).double(), nn.Tanh())),
    "reset": lambda m: torch.compiler.reset(),
}


@pytest.mark.usefixtures("layer_on_disk")
@pytest.mark.parametrize("change", CHANGES)
def test_a_change_after_a_capture_was_found_is_seen(change: str) -> None:
    compiled = run(made())
    assert traced_and_restored()[1] == 1
    CHANGES[change](compiled._gw_original)
    compare(compiled, copy.deepcopy(compiled._gw_original))


def test_attributes_that_a_call_writes() -> None:
    for expected in ((1, 0), (0, 1)):
        module = made(Counting)
        run(module)
        assert module.calls == 1
        assert traced_and_restored() == expected
        forget()


def test_closures_and_lambdas_are_found_by_what_they_do() -> None:
    def summed(factor: float) -> Callable[..., Tensor]:
        return lambda x, index: torch.zeros_like(x).index_add(0, index[1], x[index[0]] * factor)

    x = features(7, 8)
    for factor, expected in ((2.0, (1, 0)), (2.0, (0, 1)), (3.0, (1, 0)), (3.0, (0, 1))):
        function = summed(factor)
        torch.testing.assert_close(graphweave.compile(function)(x, GRAPH), function(x, GRAPH))
        assert traced_and_restored() == expected
        forget()


def test_options_and_switches_have_captures_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    x = features(7, 8)
    graphweave.compile(with_dropout)(x, GRAPH)
    forget()
    graphweave.compile(with_dropout, dynamic=False)(x, GRAPH)
    assert traced_and_restored() == (1, 0)
    graphweave.compile(with_dropout, options={"recompute": "never"})(x, GRAPH)
    assert traced_and_restored() == (1, 0)
    monkeypatch.setattr(state_key, "FORMAT", "of another version")
    state_key._versions.cache_clear()
    graphweave.compile(with_dropout)(x, GRAPH)
    state_key._versions.cache_clear()
    assert traced_and_restored() == (1, 0)
    with override(store_compilations=False):
        forget()
        graphweave.compile(with_dropout)(x, GRAPH)
        assert traced_and_restored() == (1, 0)


@pytest.mark.usefixtures("layer_on_disk")
@pytest.mark.parametrize("damage", [lambda content: content[:-20], lambda content: b"", lambda content: content[::-1]])
def test_a_damaged_file_is_not_used(
    damage: Callable[[bytes], bytes], folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (path,) = (folder / "captures").glob("*.bin")
    path.write_bytes(damage(path.read_bytes()))
    with caplog.at_level(logging.WARNING):
        run(made())
    assert traced_and_restored() == (1, 0)
    assert "damaged" in caplog.text
    forget()
    run(made())
    assert traced_and_restored() == (0, 1)


def test_a_function_with_a_graph_break_is_traced_each_time() -> None:
    for _ in range(2):
        x = features(7, 8)
        torch.testing.assert_close(graphweave.compile(broken)(x, GRAPH), broken(x, GRAPH))
        assert counters()["graph_breaks"] > 0
        assert counters()["restored_captures"] == 0
        forget()


def broken(x: Tensor, index: Tensor) -> Tensor:
    out = torch.zeros_like(x).index_add(0, index[1], x[index[0]])
    torch._dynamo.graph_break()
    return out * 2


@pytest.mark.usefixtures("layer_on_disk")
def test_explain_traces_afresh() -> None:
    assert "captured" in str(graphweave.explain(made(), features(7, 8, torch.float64), GRAPH))
    assert traced_and_restored()[1] == 0


def test_words_for_code_leave_out_its_place() -> None:
    text = "def f(x, y=2):\n    return lambda z: x + y + z\n"
    spaces: list[dict[str, Any]] = [{"__name__": "m"}, {"__name__": "m"}, {"__name__": "m"}]
    for space, (file, source) in zip(
        spaces, [("a.py", text), ("b.py", f"\n\n{text}"), ("a.py", text.replace("+ z", "- z"))], strict=True
    ):
        exec(compile(source, file, "exec"), space)
    first, second, third = (Digests().of(space["f"]) for space in spaces)
    assert first == second != third


def test_words_for_objects_of_one_process_are_refused() -> None:
    for value in (object(), Layer(), [1].append, torch.zeros(1)):
        with pytest.raises(Unknown):
            Digests().of(value)


SCRIPT = """
import torch, graphweave
from torch._dynamo.utils import counters
from layer import Layer

torch.manual_seed(0)
layer, x, index = Layer(), torch.randn(9, 4), torch.randint(9, (2, 20))
out = graphweave.compile(layer)(x, index)
out.sum().backward()
print(counters["stats"]["unique_graphs"], graphweave.counters()["restored_captures"])
print(out.detach().numpy().tobytes().hex(), layer.lin.weight.grad.numpy().tobytes().hex())
"""
LAYER = """
import torch

def helper(x):
    return x * 2

class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = torch.nn.Linear(4, 4)

    def forward(self, x, index):
        return torch.zeros_like(x).index_add(0, index[1], helper(self.lin(x))[index[0]])
"""


def in_a_process(folder: Path, seed: int) -> list[str]:
    path = os.pathsep.join((str(Path(__file__).parents[3]), os.environ.get("PYTHONPATH", "")))
    environment = {
        **os.environ, "GRAPHWEAVE_CACHE_DIR": str(folder / "cache"), "GRAPHWEAVE_STORE_COMPILATIONS": "1",
        "PYTHONPATH": path, "PYTHONHASHSEED": str(seed), "PYTHONDONTWRITEBYTECODE": "1",
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "main.py"], cwd=folder, env=environment, capture_output=True, text=True, check=True,
        timeout=patience.seconds(300),
    )  # fmt: skip
    return done.stdout.splitlines()


@pytest.mark.slow
def test_another_process_traces_nothing_until_a_file_is_edited(tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text(SCRIPT)
    (tmp_path / "layer.py").write_text(LAYER)
    counts, first = in_a_process(tmp_path, 1)
    assert counts == "1 0"
    assert in_a_process(tmp_path, 2) == ["0 1", first]
    (tmp_path / "layer.py").write_text(LAYER.replace("x * 2", "x * 3"))
    counts, edited = in_a_process(tmp_path, 3)
    assert counts == "1 0"
    assert edited != first
    (tmp_path / "layer.py").write_text("# moved by a line\n" + LAYER.replace("x * 2", "x * 3"))
    assert in_a_process(tmp_path, 4) == ["0 1", edited]


def test_a_capture_of_another_model_is_passed_over_in_silence(caplog: pytest.LogCaptureFixture) -> None:
    """Two functions of the same code: the guards of the first ask for attributes that the second's model has not."""

    def compiled(layer: nn.Module) -> Callable[..., Tensor]:
        return graphweave.compile(lambda x, index, layer=layer: layer(x, index))

    class Other(nn.Module):
        def forward(self, x: Tensor, index: Tensor) -> Tensor:
            return torch.zeros_like(x).index_add(0, index[1], x[index[0]])

    x = features(7, 8)
    compiled(Layer())(x, GRAPH)
    forget()
    out = compiled(Other())(x, GRAPH)
    assert [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING] == []
    torch.testing.assert_close(out, Other()(x, GRAPH))


@pytest.mark.parametrize("where", ["KeptTrace._parts_of", "KeptTrace.capture", "KeptGuards.words"])
def test_what_cannot_be_kept_is_compiled_whole(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another version of PyTorch may lack what is kept of its state."""

    def raises(*args: object, **kwargs: object) -> None:
        raise AttributeError("'OutputGraph' object has no attribute 'torch_function_subclass_inlined'")

    owner, name = where.split(".")
    monkeypatch.setattr(getattr(guards if owner == "KeptGuards" else keep, owner), name, raises)
    graphweave.reset_counters()
    run(made())
    found = counters()
    assert found["compilations"] == 1 and not found["graph_breaks"] and not found["eager_fallbacks"]
    assert found["unstored_captures"] == 1
