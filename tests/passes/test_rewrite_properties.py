"""Random programs of the algebra and their derivatives mean the same after rewriting, by cost or by force."""

from __future__ import annotations

import random
import time
from collections import Counter

import pytest

from graphweave.analysis.facts import Facts
from graphweave.analysis.statistics import Statistics
from graphweave.compiler.compile import optimise
from graphweave.core.types import DType, Space
from graphweave.ir.message.interp import interp
from graphweave.ir.message.nodes import Aten, Input, Program
from graphweave.ir.message.show import show
from graphweave.passes.moves import linear, products_of_push, pushes
from graphweave.passes.pass_facts import PassFacts
from tests.program_support import InputsOf, assert_computes, compiled
from tests.programs.algebra import layer_inputs, random_layers
from tests.programs.graphs import zoo
from tests.programs.joint import joint
from tests.programs.many_maps import many_maps_inputs, many_maps_program
from tests.programs.random_programs import inputs, random_program
from tests.rewrite_support import RULES, assert_equal, assert_same, attention, every_site, rewritten, sites, with_scale

_ROWS = {
    "many edges": (1_000_000, 10_000, 10_000, 10),
    "few edges": (1_000, 100_000, 100_000, 10),
    "few sources": (100_000, 100, 100_000, 10),
    "few targets": (100_000, 100_000, 100, 10),
    "many graphs": (10_000, 10_000, 50, 50_000),
    "tiny": (50, 50, 50, 3),
}
GRAPHS = {
    name: Statistics(tuple(zip(map(Space, "EVWG"), rows, strict=True)), default=1_000) for name, rows in _ROWS.items()
}
"""Statistics for which different forms of a program are the cheapest."""

MOST = 3
"""Upper limit on the moves of a program in the default run."""


def check_every_site(program: Program, number: int, inputs_of: InputsOf = layer_inputs) -> None:
    """Every rule, applied alone at every node where it applies, keeps the program's results."""
    both, found = every_site(program)
    for graph in zoo(number)[number % 5 :: 5]:
        given = inputs_of(program, graph, number)
        _, scale = with_scale(program, given)
        values = interp(both, given)
        for i, (rule, ref, _) in enumerate(found):
            assert_same(
                values[2 * i + 1 : 2 * i + 2], values[2 * i : 2 * i + 1], scale, f"{rule} at %{ref}, {graph.name}"
            )


def check_by_cost(number: int, moves: int) -> None:
    """The cheapest form of a joint program for one kind of graph gives the program's results on small graphs."""
    j = random_layers(number, moves=moves).joint()
    kind = list(GRAPHS)[number % len(GRAPHS)]
    given = PassFacts(statistics=GRAPHS[kind], tangents=j.tangents)
    done = optimise(j.program, given)
    best = done.program
    assert [None if r is None else done.where[r] for r in j.program.outputs] == list(best.outputs)
    for graph in zoo(number)[number % 5 :: 5]:
        assert_equal(j.program, {f"{kind}, {graph.name}": best}, layer_inputs(j.program, graph, number))


def check_by_force(number: int, moves: int) -> None:
    """Sequences of up to six rules, and rules that are tried together, are applied whatever they cost."""
    j = random_layers(number, moves=moves).joint()
    program, source = j.program, random.Random(number)
    forms: dict[str, Program] = {}
    for _ in range(2):
        form, names = program, []
        for _ in range(6):
            rules, order = (
                source.sample(sorted(RULES), len(RULES)),
                source.sample(range(len(form.nodes)), len(form.nodes)),
            )
            move = sites(form, rules, order)
            after = None if move is None else rewritten(form, move)
            if move is None or after is None:
                break
            form = after
            names.append(f"{move.rules[0].name} at %{move.sites[0]}")
        forms[", ".join(names)] = form
    facts = Facts(program)
    tangents = (r for r, n in enumerate(program.nodes) if isinstance(n, Input) and n.name in j.tangents)
    late = facts.flow.depending(frozenset(tangents))
    for make in (linear, products_of_push, pushes):
        for i, move in enumerate(make(facts, late)):
            after = rewritten(program, move)
            if after is not None:
                forms[f"{make.__name__} {i}"] = after
    for graph in zoo(number)[number % 8 :: 8]:
        assert_equal(program, forms, layer_inputs(program, graph, number))


# ---------------------------------------------------------------- 150 programs, or 50, then 2,000


@pytest.mark.parametrize("part", range(10))
def test_every_rule_at_every_site(part: int) -> None:
    for number in range(part, 150, 10):
        check_every_site(random_layers(number, moves=MOST).joint().program, number)


@pytest.mark.parametrize("part", [*range(4), *(pytest.param(i, marks=pytest.mark.slow) for i in range(4, 30))])
def test_joint_programs_by_cost(part: int) -> None:
    for number in range(5 * part, 5 * part + 5):
        check_by_cost(number, MOST)


@pytest.mark.parametrize("part", range(10))
def test_joint_programs_by_force(part: int) -> None:
    for number in range(part, 50, 10):
        check_by_force(number, MOST)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(100))
def test_more_joint_programs(part: int) -> None:
    for number in range(150 + part, 2_150, 100):
        check_every_site(random_layers(number).joint().program, number)
        check_by_cost(number, 6)
        check_by_force(number, MOST)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(10))
def test_every_rule_at_every_site_of_other_programs(part: int) -> None:
    """These programs are meaningless, and contain what real layers do not."""
    for number in range(part, 500, 10):
        check_every_site(joint(random_program(number, DType.f64)).program, number, inputs)
        check_every_site(joint(many_maps_program(number, DType.f64)).program, number, many_maps_inputs)


def test_programs_meet_every_rule() -> None:
    met: Counter[str] = Counter()
    for number in range(150):
        met.update(rule for rule, _, _ in every_site(random_layers(number, moves=MOST).joint().program)[1])
    # these layers have no half precision, no sorts, and no rows of several spaces: tests/passes/rewrite_cases.py
    of_others = {"narrow-early", "join-parts", "copies-apart", "join-orders"}
    assert met.keys() == {*RULES, "compact"} - of_others


@pytest.mark.slow
def test_forms_differ_with_the_graph() -> None:
    """If forms were the same for all graphs, the statistics in these tests would make no difference."""
    different = 0
    for number in range(12):
        j = random_layers(number, moves=MOST).joint()
        forms = {
            show(optimise(j.program, PassFacts(statistics=GRAPHS[kind], tangents=j.tangents)).program)
            for kind in ("many edges", "few edges")
        }
        different += len(forms) == 2
        if different == 3:
            return
    pytest.fail(f"expected other forms for few edges in three programs (got {different})")


# ---------------------------------------------------------------- what rewriting promises


def test_the_same_program_gives_the_same_result_in_under_a_second() -> None:
    texts, seconds = [], []
    for _ in range(3):
        j = attention(3)
        start = time.process_time()
        done = optimise(j.program, PassFacts(statistics=GRAPHS["many edges"], tangents=j.tangents))
        seconds.append(time.process_time() - start)
        texts.append(show(done.program))
    assert texts[0] == texts[1] == texts[2]
    assert any(step.taken for step in done.steps)
    assert min(seconds) < 1.0


@pytest.mark.parametrize("number", [0, 1, pytest.param(2, marks=pytest.mark.slow), *range(3, 10)])
def test_a_best_form_stays(number: int) -> None:
    """A second search finds no gain, or finds a form at which further searches stop."""
    j = random_layers(number, moves=MOST).joint()
    given = PassFacts(statistics=GRAPHS["many edges"], tangents=j.tangents)
    second = optimise(optimise(j.program, given).program, given).program
    assert show(optimise(second, given).program) == show(second)


@pytest.mark.parametrize("number", [3, 5, 12])
def test_compiled_is_interpreted(number: int) -> None:
    check_compiled(number)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(20, 60))
def test_more_compiled_is_interpreted(number: int) -> None:
    check_compiled(number)


def check_compiled(number: int) -> None:
    j = random_layers(number, moves=MOST).joint()
    if any(isinstance(n, Aten) for n in j.program.nodes):
        pytest.skip("rows that a call selects are counted as the program runs, not by its inputs")
    best = optimise(j.program, PassFacts(statistics=GRAPHS["many edges"], tangents=j.tangents)).program
    assert_computes(compiled(best), j.program, inputs_of=layer_inputs)
