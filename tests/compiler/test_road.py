"""The road: passes have names, run in the order of one file, can be left out alone, and `explain` tells of each."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import graphweave
from bench.check import FLOAT_TOLERANCE, step, worst_error
from graphweave.compiler.compile import compile as compile_request
from graphweave.compiler.report import collect
from graphweave.compiler.request import Request
from graphweave.compiler.road import NEEDED, ROAD, RULES
from graphweave.core.errors import SettingsError
from graphweave.core.settings import override
from graphweave.execute.build import build as build_halves
from graphweave.ir.message.interp import interp
from graphweave.ir.message.nodes import Program
from graphweave.ir.message.parse import parse
from graphweave.ir.message.show import show
from graphweave.passes.pass_facts import NO_FACTS, PassFacts
from graphweave.passes.rewritten import Rewritten, unchanged
from tests.program_support import in_order
from tests.pyg.zoo_cases import SMALL, build
from tests.support import by_default, features, random_graph

MAY_GO = [name for name in ROAD.names if name not in NEEDED]
SUM = """
space V = s0
space E = s1
%0: E[] i64 = input src
%1: E[] i64 = input dst
%2: E -> V = map %0 to V
%3: E -> V = map %1 to V
%4: V[8] f32 = input x
%5: V[8] f32 = neg %4
%6: V[8] f32 = neg %5
%7: E[8] f32 = pull %6, %2
%8: V[8] f32 = push.sum %7, %3
return %8
"""


class Everything(nn.Module):
    """Work for most passes: masks, blocks with the rows behind them, stacks, relations, a softmax, narrow rows."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.ParameterList([features(8, 6, seed=k) for k in range(3)])
        self.blocks = nn.Parameter(features(4, 9, seed=5).view(2, 2, 9)[:, :, :4])
        self.score = nn.Linear(6, 1)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        relation = torch.arange(edge_index.shape[1]) % 3
        outs = []
        for k, weight in enumerate(self.weights):
            src, dst = edge_index[:, relation == k]
            outs.append(torch.zeros_like(x).index_add(0, dst, x[src]) @ weight)
        h = torch.stack(outs).sum(0)
        src, dst = edge_index
        score = self.score(h)
        logits = F.leaky_relu(score[src] - score[dst])
        top = torch.full_like(score, -1e9).scatter_reduce(0, dst[:, None], logits, "amax")
        weights = (logits - top[dst]).exp()
        total = torch.zeros_like(score).index_add(0, dst, weights)
        mixed = torch.zeros_like(h).index_add(0, dst, h[src] * weights / total[dst])
        rows = torch.einsum("nbi,bij->nbj", mixed[:, :4].reshape(-1, 2, 2), self.blocks).flatten(1)
        kept = rows[rows[:, 0] > 0]
        return rows.tanh() + h[:, :1] + kept.sum()


@dataclass(frozen=True, slots=True)
class CancelNegations:
    """neg(neg(x)) -> x. Always legal, and saves two operations."""

    name: str = "cancel-negations"

    def __call__(self, program: Program, facts: PassFacts = NO_FACTS) -> Rewritten:
        text = show(program)
        return unchanged(program) if "= neg %5" not in text else replace(
            unchanged(program), program=parse(text.replace("pull %6", "pull %4"))
        )  # fmt: skip


# ---------------------------------------------------------------- rows


def test_names_are_those_of_the_rows_and_differ_from_the_names_of_rules() -> None:
    assert len(ROAD.names) == len(set(ROAD.names)) and not RULES & set(ROAD.names)
    assert set(NEEDED) <= set(ROAD.names)


def test_a_road_without_nothing_is_the_road() -> None:
    assert ROAD.without(frozenset()) is ROAD
    assert "simplify" not in ROAD.without(frozenset({"simplify"})).names
    assert ROAD.without(frozenset({"factor"})) == ROAD


@pytest.mark.parametrize(
    ("passes", "says"),
    [
        ("-shard", r"the pass 'shard' is needed, since .* \(got '-shard'\)\. Keep it\."),
        ("-simplfy", r"no pass or rule has the name 'simplfy'; there are .*simplify.* Name one of these\."),
        ("simplify", r"each name behind a minus \(got 'simplify'\)\. Write it so: '-narrow-gathers,-postpone'\."),
        (3, r"option 'passes' must list what is left out"),
    ],
)
def test_wrong_names_are_refused_before_anything_is_compiled(passes: Any, says: str) -> None:
    with pytest.raises(SettingsError, match=says):
        graphweave.compile(torch.sin, options={"passes": passes})


# ---------------------------------------------------------------- one left out


def check_without(name: str, module: nn.Module, *args: Tensor) -> None:
    compiled = graphweave.compile(module, options={"passes": f"-{name}"})
    got = step(compiled, args, {}, module=compiled)
    error, where = worst_error(got, step(module, args, {}, module=module))
    assert error < FLOAT_TOLERANCE[torch.float32], f"without {name}: {where} {error:.3g}"


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("name", by_default(MAY_GO, "simplify", "merge", "unstack"))
def test_numbers_stay_without_a_pass(name: str) -> None:
    check_without(name, Everything(), features(30, 8), random_graph(30, 30, 120))
    assert graphweave.counters()["eager_fallbacks"] == 0


@pytest.mark.zoo
@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("case", SMALL)
@pytest.mark.parametrize("name", MAY_GO)
def test_numbers_of_the_small_zoo_stay_without_a_pass(name: str, case: str) -> None:
    built = build(case)
    want = step(built.module, built.args, built.kwargs, module=built.module, counter_based=True)
    again = build(case).module
    compiled = graphweave.compile(again, options={"passes": f"-{name}"})
    error, where = worst_error(step(compiled, built.args, built.kwargs, module=again), want)
    assert error < FLOAT_TOLERANCE[torch.float32], f"{case} without {name}: {where} {error:.3g}"


@pytest.mark.usefixtures("fresh_compiler")
def test_a_rule_that_is_left_out_does_not_fire() -> None:
    def messages(x: Tensor, weight: Tensor, edge_index: Tensor) -> Tensor:
        src, dst = edge_index
        return x.new_zeros(len(x), 4).index_add(0, dst, x[src] @ weight)

    def fired(**options: Any) -> set[str]:
        x, weight = features(2000, 8).requires_grad_(), features(8, 4).requires_grad_()
        compiled = graphweave.compile(messages, options=options)
        told = graphweave.explain(compiled, x, weight, random_graph(2000, 2000, 40_000))
        return {rule for note in told.rewrites for tried in note.steps if tried.taken for rule in tried.rules}

    (name, *_) = sorted(fired())
    assert name in RULES and name not in fired(passes=f"-{name}")


# ---------------------------------------------------------------- what is told


@pytest.mark.usefixtures("fresh_compiler")
def test_explain_tells_which_passes_ran_what_they_changed_and_how_long_they_took() -> None:
    told = graphweave.explain(Everything(), features(30, 8), random_graph(30, 30, 120))
    names = [note.name for note in told.passes]
    assert names[: len(ROAD.spellings)] == [row.name for row in ROAD.spellings]
    assert [n.name for n in told.passes if n.stage == "joint"] == [row.name for row in ROAD.joint]
    assert {"partition", "half", "prelude"} <= {note.stage for note in told.passes}
    changed = {note.name for note in told.passes if note.changed}
    assert {"masks-to-indices", "unstack", "simplify", "merge", "rewrite"} <= changed
    assert all(note.seconds > 0 for note in told.passes)
    text = told.text("passes")
    assert f"== passes: {len(names)}, of which" in text and "nothing to do" in text and " ms" in text


def test_a_pass_that_changes_a_program_leaves_a_file(tmp_path: Path) -> None:
    with override(dump=tmp_path):
        compile_request(Request(parse(SUM), road=replace(ROAD, joint=(CancelNegations(), *ROAD.joint))))
    assert any(path.name.endswith("_cancel-negations.message.txt") for path in tmp_path.iterdir())


# ---------------------------------------------------------------- a contributor's pass, and a door


def test_a_pass_is_a_class_and_a_row() -> None:
    program = parse(SUM)
    road = replace(ROAD, joint=(CancelNegations(), *ROAD.joint))
    with collect() as report:
        halves = compile_request(Request(program, road=road))
    assert "neg" not in show(halves.program)
    assert [n.changed for n in report.passes if n.name == "cancel-negations"] == [True]
    assert "cancel-negations" not in road.without(frozenset({"cancel-negations"})).names


def test_a_door_is_a_request() -> None:
    """From a program to an executable; a door that captures functions makes the program, and names its inputs."""
    program = parse(SUM)
    (made,) = build_halves(compile_request(Request(program, names={"x": "features"})))
    edges = random_graph(5, 5, 12)
    given = {"src": edges[0], "dst": edges[1], "x": features(5, 8)}
    (got,) = made(in_order(made.plan.program, given))
    torch.testing.assert_close(got, interp(program, given)[0])


def test_one_file_has_the_order() -> None:
    """No other file of the package makes a pass."""
    package = Path(graphweave.__file__).parent
    passes = {type(row).__name__ for row in (*ROAD.joint, *ROAD.half, *ROAD.prelude)}
    makers = {
        path.relative_to(package).as_posix()
        for path in package.rglob("*.py")
        for name in passes
        if f"{name}()" in path.read_text().replace(f"class {name}(", "")
    }
    assert makers == {"compiler/road.py"}
