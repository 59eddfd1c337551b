"""Keys of captured graphs: two graphs that differ have two texts, and what has no certain text has no key."""

from __future__ import annotations

import hashlib
import math
import operator
from collections import defaultdict
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from graphweave.core.choices import Choices
from graphweave.core.settings import override
from graphweave.frontends.stored import state_key
from graphweave.frontends.stored.graph_key import Unkeyed, _function, graph_text
from graphweave.frontends.stored.state_key import state_text
from graphweave.nn import gat_conv


def captured(f: Callable[..., Any], *inputs: Tensor) -> fx.GraphModule:
    """A graph as Dynamo hands it over, with fake inputs."""
    module = fx.symbolic_trace(f)
    mode = FakeTensorMode()
    for node, value in zip(module.graph.find_nodes(op="placeholder"), inputs, strict=True):
        node.meta["example_value"] = mode.from_tensor(value)
    return module


def given(f: Callable[..., Any], n: Any) -> Callable[..., Any]:
    """`f` of a tensor and the constant `n`."""
    return lambda x: f(x, n)


X = torch.ones(3, 4)

DIFFERENT: dict[str, tuple[fx.GraphModule, ...]] = {
    "functions": (captured(lambda x: torch.sin(x), X), captured(lambda x: torch.cos(x), X)),
    "numbers": tuple(captured(given(lambda x, n: x * n, n), X) for n in (2, 2.0, 0.0, -0.0, math.inf, True)),
    "texts": tuple(captured(given(lambda x, n: torch.einsum(n, x), n), X) for n in ("ij->ji", "ij->i")),
    "named arguments": tuple(captured(given(lambda x, n: x.sum(dim=n), n), X) for n in (0, 1, (0, 1))),
    "slices": tuple(captured(given(lambda x, n: x[n], n), X) for n in (slice(0, 2), slice(0, None), Ellipsis, None)),
    "dtypes": tuple(captured(lambda x: x + 1, X.to(t)) for t in (torch.float32, torch.float64, torch.int32)),
    "shapes": tuple(captured(lambda x: x + 1, torch.ones(n)) for n in ((3, 4), (4, 3), (12,), ())),
    "strides": (captured(lambda x: x + 1, X.t()), captured(lambda x: x + 1, torch.ones(4, 3))),
    "gradients": (captured(lambda x: x + 1, X), captured(lambda x: x + 1, X.clone().requires_grad_())),
    "methods": (captured(lambda x: x.sin(), X), captured(lambda x: x.cos(), X)),
    "results": (captured(lambda x: x + 1, X), captured(lambda x: (x + 1,), X)),
    "order": (captured(lambda x, y: x - y, X, X), captured(lambda x, y: y - x, X, X)),
}


@pytest.mark.parametrize("what", DIFFERENT)
def test_other_graphs_have_other_texts(what: str) -> None:
    graphs = DIFFERENT[what]
    assert len({graph_text(module) for module in graphs}) == len(graphs)


def test_equal_graphs_have_equal_texts() -> None:
    one, other = (captured(lambda x: (x[:2] * 3).sum(-1), X) for _ in range(2))
    assert graph_text(one) == graph_text(other)


def test_inputs_in_one_memory_are_told_from_others() -> None:
    x = torch.ones(4)
    mode = FakeTensorMode()
    fake, other = mode.from_tensor(x), mode.from_tensor(x.clone())
    texts = set()
    for second in (fake.view(4), other):
        module = fx.symbolic_trace(lambda x, y: x + y)
        for node, value in zip(module.graph.find_nodes(op="placeholder"), (fake, second), strict=True):
            node.meta["example_value"] = value
        texts.add(graph_text(module).replace("True", "False"))  # one of them is also a view
    assert len(texts) == 2


def test_constants_are_keyed_by_their_content() -> None:
    def with_constant(value: float) -> fx.GraphModule:
        module = captured(lambda x: x + 1, X)
        module.constant = torch.full((2,), value)
        with module.graph.inserting_before(module.graph.output_node()):
            module.graph.create_node("get_attr", "constant")
        return module

    texts = [graph_text(with_constant(v)) for v in (1.0, 2.0, 1.0)]
    assert texts[0] == texts[2] != texts[1]


def test_every_function_of_pytorch_has_a_text_of_its_own() -> None:
    places = (torch, torch.nn.functional, torch.Tensor, torch.linalg, torch.special, torch.fft, operator, math)
    found: dict[str, list[Any]] = defaultdict(list)
    keyed = 0
    for place in places:
        for name in dir(place):
            value = getattr(place, name)
            if not callable(value) or isinstance(value, type):
                continue
            try:
                text = _function(value)
            except Unkeyed:
                continue
            keyed += 1
            if value not in found[text]:
                found[text].append(value)
    assert {text: values for text, values in found.items() if len(values) > 1} == {}
    assert keyed > 1500
    for value in (torch.relu, torch.add, torch.nn.functional.linear, torch.Tensor.view, operator.getitem, torch.cat):
        _function(value)


def _own(x: Tensor) -> Tensor:
    return x + 1


fx.wrap("_own")


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: captured(lambda x: _own(x), X), "whose code is not in the key"),
        (lambda: captured(nn.Sequential(nn.Linear(4, 4)), X), "parameters are part of the graph"),
        (lambda: fx.symbolic_trace(lambda x: x + 1), "nothing is known of an input"),
        (lambda: captured(lambda x: torch.ops.debugprims.load_tensor.default(x), X), "of another library"),
        (lambda: captured(lambda x: x.to_sparse(), X.to_sparse()), "of layout"),
    ],
    ids=["function", "module", "no input", "operator", "sparse"],
)
def test_what_has_no_certain_text(make: Callable[[], fx.GraphModule], why: str) -> None:
    with pytest.raises(Unkeyed, match=why):
        graph_text(make())


def test_a_function_that_was_replaced_has_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    original = torch.nn.functional.linear
    monkeypatch.setattr(torch.nn.functional, "gelu", _own)
    with pytest.raises(Unkeyed):
        _function(torch.nn.functional.gelu)
    assert _function(original)


def test_the_state_has_what_is_in_force() -> None:
    texts = {state_text(Choices()), state_text(Choices(recompute="never"))}
    with torch.no_grad():
        texts.add(state_text(Choices()))
    with torch.autocast("cpu", torch.bfloat16):
        texts.add(state_text(Choices()))
    with override(unseen_edits=False):
        texts.add(state_text(Choices()))
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        texts.add(state_text(Choices()))
    finally:
        torch.use_deterministic_algorithms(False)
    torch.set_default_dtype(torch.float64)
    try:
        texts.add(state_text(Choices()))
    finally:
        torch.set_default_dtype(torch.float32)
    assert len(texts) == 7
    with override(cache_bytes=5, logs="passes"):
        assert state_text(Choices()) in texts
    with torch.device("meta"), pytest.raises(Unkeyed, match="a default device"):
        state_text(Choices())


def test_the_code_of_layers_is_part_of_each_key() -> None:
    """A trace enters the layers of this package, whose functions are not compared one by one."""
    read = dict(state_key._python_files(files("graphweave"), ""))
    assert read["/nn/gat_conv.py"] == Path(gat_conv.__file__).read_bytes()
    assert state_key._sources().startswith(digest_of(read))


def digest_of(read: dict[str, bytes]) -> str:
    digest = hashlib.sha256()
    for path, content in read.items():
        digest.update(f"{path} {len(content)}\n".encode() + content)
    return digest.hexdigest()
