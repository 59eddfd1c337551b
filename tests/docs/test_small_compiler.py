"""The page "The compiler in 300 lines" (`docs/design/small.md`): its program is small, alone, in our style, and right.

That each block prints what the page says is checked in `tests/docs/test_doc_blocks.py`.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from docs import made
from tests.doc_blocks import Block, is_one_program, programs, skip_without_compiler

PAGE = made.ROOT / "docs/design/small.md"
*ALONE, WITH_GRAPHWEAVE = programs()["docs/design/small.md"]
MAX_LINES = 335
"""The compiler of the page may have this many lines that are no imports, docstrings or blank lines."""


@pytest.fixture(scope="module")
def small() -> Iterator[Any]:
    """The program of the page as a module, after all its blocks but the one with graphweave have run."""
    skip_without_compiler()
    module = ModuleType("docs_design_small")
    sys.modules[module.__name__] = module  # dataclasses look up their annotations there
    exec(compile(_text(ALONE), str(PAGE), "exec"), vars(module))
    yield module
    del sys.modules[module.__name__]


def test_it_has_about_300_lines() -> None:
    compiler = [block for block in ALONE if block.printed is None]
    assert len(compiler) > 15 and is_one_program(PAGE)
    assert 300 <= sum(len(_code_lines(block.text)) for block in compiler) <= MAX_LINES


def test_it_stands_alone() -> None:
    """It needs Python's library and PyTorch. Only the last block uses graphweave."""
    allowed = {*sys.stdlib_module_names, "torch"}
    assert _imported(_text(ALONE)) <= allowed
    assert _imported(WITH_GRAPHWEAVE.text) == {"graphweave"}


@pytest.mark.parametrize("command", [("check", "--ignore=E402"), ("format", "--diff")], ids=lambda command: command[0])
def test_it_is_in_our_style(command: tuple[str, str]) -> None:
    """Like a file of the package. Only the last block imports where it stands."""
    blocks = "\n\n".join(block.text for block in (*ALONE, WITH_GRAPHWEAVE)).rstrip() + "\n"
    words = [sys.executable, "-m", "ruff", *command, "--stdin-filename", str(PAGE.with_suffix(".py")), "-"]
    done = subprocess.run(words, input=blocks, capture_output=True, text=True, check=False, cwd=made.ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_table_names_what_is_on_the_page() -> None:
    rows = re.findall(r"^\| ([^|]*) \|[^|]*\|[^|]*\|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    defined = {n.name for n in ast.walk(ast.parse(_text(ALONE))) if isinstance(n, ast.FunctionDef | ast.ClassDef)}
    assert len(named) >= 20 and named <= {*defined, "OPERATORS", "PLAIN", "CPP"}


def test_the_book_begins_with_it() -> None:
    read_on = (made.ROOT / "docs/design.md").read_text(encoding="utf-8").partition("## Read on\n\n")[2]
    assert read_on.startswith("- [The compiler in 300 lines](design/small.md)")


@pytest.mark.parametrize(("of", "wanted"), [("x", ["w", "u", "grad"]), ("w", ["x", "grad"])])
def test_derivatives_have_derivatives(small: Any, of: str, wanted: list[str]) -> None:
    """The algebra is closed: gradients of gradients are those of autograd."""
    inputs = _inputs(small, small.awkward)
    (gradient,) = small.gradients(small.out, small.grad, [getattr(small, of)])
    seed = small.node(small.Input, "seed", small.type_of(gradient))
    second = small.gradients(gradient, seed, [getattr(small, name) for name in wanted])
    small.verify(second)
    inputs["seed"] = torch.randn_like(inputs[of])

    leaves = {name: value.clone().requires_grad_() for name, value in inputs.items()}
    result = small.layer(leaves["x"], leaves["w"], leaves["u"], *small.awkward.index.values())
    (first,) = torch.autograd.grad(result, leaves[of], leaves["grad"], create_graph=True)
    expected = list(torch.autograd.grad(first, [leaves[name] for name in wanted], inputs["seed"]))
    torch.testing.assert_close(small.interpret(second, inputs, small.awkward), expected)


def test_two_layers_with_weights_on_edges(small: Any) -> None:
    """Values of edges that are inputs, and pushes along both maps, whose results are pulled again."""
    roots = _two_layers(small)
    rewritten = small.rewrite(roots[:1], [small.product_before_pull], small.rows)
    wanted = [small.x, small.w, small.u]
    program = [*rewritten, *small.gradients(rewritten[0], roots[0], wanted)]
    small.verify(program)
    compiled = small.compile_program(program)
    for graph in (small.awkward, small.graph_of(3, []), small.graph_of(1, [(0, 0)] * 4)):
        inputs = _inputs(small, graph) | {"s": torch.randn(graph.rows[small.E], 3, dtype=torch.float64)}
        results = compiled(inputs, graph)
        torch.testing.assert_close(results, small.interpret(program, inputs, graph))
        torch.testing.assert_close(results, _eager_two_layers(small, inputs, graph))


def test_a_rule_that_does_not_pay_is_not_applied(small: Any) -> None:
    few_edges = {small.V: 9000, small.E: 1000, small.UNIT: 1}
    kept = small.rewrite([small.out], [small.product_before_pull], few_edges)
    assert kept == [small.out]
    assert small.rewrite([small.better], [small.product_before_pull], small.rows) == [small.better]
    assert small.product_before_pull(small.out) is None


def test_equal_nodes_are_one(small: Any) -> None:
    assert small.pointwise("relu", small.x) is small.pointwise("relu", small.x)
    doubled = small.pointwise("add", small.pointwise("relu", small.x), small.pointwise("relu", small.x))
    assert small.show([doubled]).count("relu x") == 1


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda s: s.node(s.Pull, s.node(s.Pull, s.x, s.src), s.src), r"pull expects rows of V \(got E\[4\]\)"),
        (lambda s: s.node(s.Push, s.x, s.src), r"push expects rows of E \(got V\[4\]\)"),
        (lambda s: s.pointwise("cosine", s.x), r"a known operator, and operands of one type \(got V\[4\]\)"),
        (lambda s: s.pointwise("add", s.x, s.w), r"operands of one type \(got V\[4\], unit\[4, 3\]\)"),
        (lambda s: s.node(s.MatMul, s.grad, s.w), r"R\[k\] and unit\[k, n\] \(got V\[3\], unit\[4, 3\]\)"),
        (lambda s: s.node(s.Transpose, s.x), r"a matrix that all rows share \(got V\[4\]\)"),
        (lambda s: s.node(s.Gram, s.x, s.w), r"two values of the same rows \(got V\[4\], unit\[4, 3\]\)"),
    ],
    ids=["pull", "push", "operator", "types", "matmul", "transpose", "gram"],
)
def test_the_verifier_refuses(small: Any, build: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        small.verify([build(small)])


def _two_layers(small: Any) -> list[Any]:
    """relu(layer) goes back along `src`, times a weight of each edge `s`. Its gradient is taken to be itself."""
    s = small.node(small.Input, "s", small.Type(small.E, (3,)))
    hidden = small.pointwise("relu", small.out)
    message = small.pointwise("mul", s, small.node(small.Pull, hidden, small.dst))
    return [small.node(small.Push, message, small.src)]


def _eager_two_layers(small: Any, inputs: dict[str, Tensor], graph: Any) -> list[Tensor]:
    x, w, u = (inputs[name].clone().requires_grad_() for name in ("x", "w", "u"))
    src, dst = graph.index[small.src], graph.index[small.dst]
    hidden = torch.relu(small.layer(x, w, u, src, dst))
    out = torch.zeros_like(hidden).index_add(0, src, inputs["s"] * hidden[dst])
    return [out.detach(), *torch.autograd.grad(out, (x, w, u), out.detach())]


def _inputs(small: Any, graph: Any) -> dict[str, Tensor]:
    num_nodes = graph.rows[small.V]
    shapes = {"x": (num_nodes, 4), "w": (4, 3), "u": (4, 3), "grad": (num_nodes, 3)}
    torch.manual_seed(0)
    return {name: torch.randn(shape, dtype=torch.float64) for name, shape in shapes.items()}


def _text(blocks: list[Block]) -> str:
    return "\n\n".join(block.text for block in blocks)


def _code_lines(text: str) -> list[str]:
    """The lines that are no import, docstring, comment or blank line."""
    left_out: set[int] = set()
    for n in ast.walk(ast.parse(text)):
        is_docstring = isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant)
        if is_docstring or isinstance(n, ast.Import | ast.ImportFrom):
            left_out |= set(range(n.lineno, (n.end_lineno or n.lineno) + 1))
    lines = enumerate(text.splitlines(), 1)
    return [line for number, line in lines if number not in left_out and line.strip() and line.strip()[0] != "#"]


def _imported(text: str) -> set[str]:
    """The packages that a program imports."""
    nodes = list(ast.walk(ast.parse(text)))
    names = [alias.name for n in nodes if isinstance(n, ast.Import) for alias in n.names]
    names += [n.module or "" for n in nodes if isinstance(n, ast.ImportFrom)]
    return {name.partition(".")[0] for name in names}
