"""Errors and warnings for users say what happened and end with what to do: the catalogue, and those that can be met.

The line comes with Python's traceback where a function is called outside of compiled code; what is raised or warned of
inside names it itself.
"""

from __future__ import annotations

import ast
import logging
import os
import re
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import graphweave
from graphweave.core.errors import GraphweaveError, SettingsError
from graphweave.core.settings import override
from graphweave.frontends.dynamo import graph_compilation
from graphweave.frontends.tracing.reasons import one_line, reason_of
from graphweave.runtime.toolchain import REMEDY
from tests import fresh_process
from tests.support import features, random_graph

PACKAGE = Path(graphweave.__file__).parent
HERE = os.path.relpath(__file__)

REASONS = {
    "IRError", "ParseError", "NotExpressible", "CaptureError", "CompileError", "NeedsLocal", "NotImplementedError",
    "CannotSay", "NotPython", "Unkeyed", "Unknown", "Misfit", "NotGiven", "KeysAsked", "_Refused",
    "AttributeError", "KeyError", "IndexError", "AssertionError", "StopIteration",
}  # fmt: skip
"""Errors raised for the compiler itself, as reasons that `explain` or a warning then reports, or for Python."""

ADVICE = re.compile(
    r"(?:Add|Ask|Call|Change|Check|Choose|Clone|Close over|Compile|Convert|Correct|Delete|Flatten|Free|Gather|Give"
    r"|Index|Inside|Install|Keep|Leave|Let|Loop|Lower|Make|Move|Name|Partition|Pass|Please|Put|Read|Reduce|Remove|Rename"
    r"|Replace|Report|Reshape|Return|Run|Save|Set|Swap|Take|Transpose|Unset|Use|With|Write"
    r"|For the product number by number give"
    r"|Its fields live on"
    r"|inside a loop use|convert it|please report)\b"
)

Site = tuple[str, str]


def _words(node: ast.expr) -> str | None:
    """The text of a message, with its values in braces; None where it is made elsewhere."""
    match node:
        case ast.Constant(str(value)):
            return value
        case ast.JoinedStr(values):
            return "".join(v.value if isinstance(v, ast.Constant) else "{}" for v in values)
        case _:
            return None


@cache
def _calls(path: Path) -> tuple[tuple[int, str, str | None], ...]:
    """(line, name, `_words`) of each error that a file raises and of each of its warnings."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        call = node.exc if isinstance(node, ast.Raise) else node
        if not isinstance(call, ast.Call) or not call.args:
            continue
        name = ast.unparse(call.func).rpartition(".")[2]
        warns = name in ("warn", "warn_once") and not isinstance(node, ast.Raise)
        if (isinstance(node, ast.Raise) and name not in REASONS) or warns:
            found.append((node.lineno, name, _words(call.args[0])))
    return tuple(found)


def _sites() -> list[Site]:
    """(file and line, message) of every error that a user may see and of every warning."""
    out = []
    for path in sorted(PACKAGE.rglob("*.py")):
        room = path.relative_to(PACKAGE).parts[0]
        if room in ("ir", "passes", "lower", "codegen"):  # their errors are about the IR, not about user programs
            continue
        for line, _, words in _calls(path):
            if words is not None:
                out.append((f"{path.relative_to(PACKAGE)}:{line}", words))
    return out


def test_there_are_sites() -> None:
    assert len(_sites()) > 200


def test_every_message_ends_with_what_to_do() -> None:
    """The advice stands in a sentence or clause after the first."""
    made_elsewhere = {  # the last value is the advice, or an error that ends with advice
        "{} Unset it for the default.",
        "{}\n  {}",
        "must be {} (got {})",
        "expected a C++17 compiler (got {}). {}",
        "the model cannot run over parts: {}{}. {}",
        "graphweave: {} runs eagerly: {}",
        "gradients of gradients of {} cannot be computed: {}. {}",
        "graphweave: {}.",
        "mode must be one of {} (got {}). {}",
        "graphweave: {}{} Compile the kinds apart, each by a graphweave.compile of its own.",
        "edits that PyTorch does not see are not noticed: {}",
        # parts of the tuner's reason, which a warning with advice ends
        "{} s were needed and {} s were left",
        "kernels were not ready",
        "a run apart from the user's call failed: {}",
        "the argument {} is not known before the call",
        # why equal parts are traced one by one, and why a compilation is not kept on disk, for the logs
        "gradients of a part whose results nothing reads",
        "a part writes to other inputs than expected: {}, {}",
        "a {} of a captured graph has no bytes",
        "an operator's derivative depends on how its operand lies in memory",
        # why a function is not rewritten, which a warning with advice follows
        "the rewritten function has other variables of functions around it",
        "the rewritten function is no valid Python",
        "there is no loop at these lines",
        "the function is a generator or looks at its own local variables",
        "a loop stands in a statement of the kind {}",
        "a while loop has both `continue` and `else`",
    }
    silent = [
        f"{where}: {words}"
        for where, words in _sites()
        if words not in made_elsewhere
        and not any(ADVICE.match(clause) for clause in re.split(r"[.:;] ", words.strip())[1:])
    ]
    assert not silent, "\n".join(silent)


def test_warnings_begin_with_who_speaks() -> None:
    other = []
    for path in sorted(PACKAGE.rglob("*.py")):
        for line, name, words in _calls(path):
            if name == "warn" and words is not None and not words.startswith("graphweave: "):
                other.append(f"{path.relative_to(PACKAGE)}:{line}: {words}")
    assert not other, "\n".join(other)


# ---------------------------------------------------------------- errors that users can meet


def neighbours(x: Tensor, edge_index: Tensor) -> Tensor:
    return torch.zeros_like(x).index_add(0, edge_index[1], x[edge_index[0]])


def _line_of(text: str) -> int:
    return 1 + next(i for i, line in enumerate(Path(__file__).read_text().splitlines()) if text in line)


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch, fresh_compiler: None) -> Callable[[Callable[[], Any]], list[str]]:
    """The warnings that a call gives, those included that were given before."""
    monkeypatch.setattr("graphweave.core.log._warned", set())

    def run(call: Callable[[], Any]) -> list[str]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            call()
        return [str(w.message) for w in caught if "graphweave" in str(w.message)]

    return run


def test_a_graph_that_cannot_be_compiled(
    monkeypatch: pytest.MonkeyPatch, said: Callable[[Callable[[], Any]], list[str]]
) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("the first line\nand the second")

    monkeypatch.setattr(graph_compilation, "build", broken)
    x, edge_index = features(6, 4), random_graph(6, 6, 12)
    (text,) = said(lambda: graphweave.compile(neighbours)(x, edge_index))
    assert text == (
        f"graphweave: neighbours ({HERE}:{_line_of('.index_add(0, edge_index[1], x[edge')}) runs eagerly, since its "
        "graph could not be compiled: RuntimeError: the first line and the second. The results are right; please "
        "report it, with GRAPHWEAVE_LOGS=+frontends for the traceback."
    )


def test_no_compiler(said: Callable[[Callable[[], Any]], list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    x, edge_index = features(6, 4), random_graph(6, 6, 12)
    with override(cxx="no-such-compiler"):
        (text,) = said(lambda: graphweave.compile(neighbours)(x, edge_index))
    assert text.startswith(f"graphweave: neighbours ({HERE}:")
    assert text.endswith("there is no C++ compiler (looked for $GRAPHWEAVE_CXX, $CXX, g++, clang++, the package "
                         f"ziglang). {REMEDY}")  # fmt: skip


def test_a_function_that_cannot_be_traced(
    monkeypatch: pytest.MonkeyPatch, said: Callable[[Callable[[], Any]], list[str]]
) -> None:
    """The reason is there to its last word, though PyTorch wraps it: "backend='...' raised:", and then a line break."""

    def refuses(*_: Any, **__: Any) -> None:
        raise RuntimeError("what the backend\nsays at length")

    monkeypatch.setattr("graphweave.frontends.dynamo.captured.graphweave", refuses)
    texts = said(lambda: graphweave.compile(neighbours)(features(6, 4), random_graph(6, 6, 12)))
    assert texts
    for text in texts:
        assert text.startswith("graphweave: neighbours") and "RuntimeError: what the backend says at length. " in text
        assert "functools.partial" not in text and text.endswith("graphweave.explain lists what is compiled.")
    assert f"({HERE}:{_line_of('def neighbours')})" in texts[-1]


def test_reasons_of_dynamo_are_kept_whole() -> None:
    report = (
        "Data-dependent branching\n  Explanation: Detected branching\n  on a tensor.\n  Hint: Use torch.cond.\n\n"
        "  Developer debug context: none\n\n\nfrom user code:\n"
        f'   File "{__file__}", line 7, in f\n    if x:\n\n'
        'Set TORCHDYNAMO_VERBOSE=1 for the internal stack trace.\n'
    )  # fmt: skip
    why, where = reason_of(RuntimeError(report))
    assert why == "Data-dependent branching. Detected branching on a tensor"
    assert where == f"{HERE}:7"
    assert one_line("several\nlines  of a reason") == "several lines of a reason"


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: graphweave.compile(3), r"3 cannot be called.*Pass the model itself\."),  # type: ignore[type-var]
        (lambda: graphweave.compile(neighbours, options={"fast": True}), r"unknown option 'fast'.*Name one of these\."),
        (lambda: graphweave.compile(neighbours, mode="max"), "mode must be one of .*"),
        (lambda: graphweave.graph(([0, 9], [1, 1]), num_nodes=2), r"src: index 9 at position 1 .* num_nodes\."),
    ],
)
def test_mistakes_of_users(call: Callable[[], Any], words: str) -> None:
    with pytest.raises((GraphweaveError, TypeError), match=words):
        call()


def projected(x: Tensor, weight: Tensor) -> Tensor:
    return torch.tanh(x @ weight)


def spread(x: Tensor, index: Tensor) -> Tensor:
    return torch.zeros_like(x).scatter_add(0, index, x)


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("plain", [False, True], ids=["graphweave.compile", "torch.compile"])
@pytest.mark.parametrize(("function", "last"), [(projected, torch.randn(5, 4)), (spread, torch.rand(6, 4))])
def test_refused_operands_are_told_by_the_error_alone(
    function: Callable[..., Tensor], last: Tensor, plain: bool
) -> None:
    """Features of another width, and an index of floats: PyTorch's tracer logs a traceback of its own for each."""
    logged: list[logging.LogRecord] = []
    handler, log = logging.Handler(), logging.getLogger("torch._subclasses.fake_tensor")
    handler.emit = logged.append  # type: ignore[method-assign]
    compiled = torch.compile(function, backend="graphweave") if plain else graphweave.compile(function)
    words = "same reduction dim" if plain and function is projected else "cannot be multiplied|Expected dtype int"
    log.addHandler(handler)
    try:
        with pytest.raises(RuntimeError, match=words):
            compiled(features(6, 4), last)
        assert not logged
        with pytest.raises(RuntimeError):  # other backends report what they did
            torch.compile(function, backend="eager")(features(6, 4), last)
        assert logged
    finally:
        log.removeHandler(handler)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("GRAPHWEAVE_CACHE_BYTES", "12x", "a number of bytes"),
        pytest.param("GRAPHWEAVE_LOGS", "pases", "out of all", marks=pytest.mark.slow),
    ],
)
def test_a_bad_variable_is_one_line(name: str, value: str, expected: str) -> None:
    """The import succeeds, and the command line says it in one line; a program meets it where it compiles."""
    program = (
        "import sys, graphweave, graphweave.cli.main as cli\n"
        "try: graphweave.compile(print)\n"
        "except graphweave.core.errors.SettingsError as error: print(error)\n"
        "sys.exit(cli.main(['doctor']))\n"
    )
    done = fresh_process.run(program, {**os.environ, name: value})
    assert done.returncode == 2, done.stderr
    assert len(done.stdout.splitlines()) == 1 and len(done.stderr.splitlines()) == 1, done.stderr
    assert name in done.stdout and expected in done.stdout and done.stdout.endswith("Unset it for the default.\n")
    assert done.stderr == f"graphweave doctor: error: {done.stdout}"


def test_logs_tell_what_each_room_did() -> None:
    program = (
        "import torch, graphweave\n"
        "x, i = torch.randn(5, 4, requires_grad=True), torch.randint(5, (2, 9))\n"
        "f = lambda x, i: torch.zeros_like(x).index_add(0, i[1], x[i[0]])\n"
        "graphweave.compile(f)(x, i).sum().backward()\n"
    )
    done = fresh_process.run(program, {**os.environ, "GRAPHWEAVE_LOGS": "all"})
    assert done.returncode == 0, done.stderr
    rooms = {m[1] for m in re.finditer(r"^\[graphweave\.(\w+)", done.stderr, re.MULTILINE)}
    assert rooms >= {"frontends", "analysis", "ir", "passes", "lower", "codegen", "compiler", "runtime", "execute"}
    assert "[graphweave.passes] rewrite: " in done.stderr and "[graphweave.lower] forward_" in done.stderr


def test_every_logger_is_below_graphweave() -> None:
    """GRAPHWEAVE_LOGS does not reach other loggers."""
    for path in PACKAGE.rglob("*.py"):
        for name in re.findall(r"\blogger\(([^)]*)\)", path.read_text()):
            assert name in ("__name__", "name: str", "") or name.startswith('"graphweave.'), f"{path}: {name}"


def test_a_setting_that_is_refused_is_refused_by_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("graphweave.core.settings._current", None)
    monkeypatch.setenv("GRAPHWEAVE_ARENA_BYTES", "much")
    with pytest.raises(SettingsError, match="GRAPHWEAVE_ARENA_BYTES must be a number of bytes"):
        graphweave.compile(neighbours)
