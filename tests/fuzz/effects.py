"""Moves whose programs do more than compute: Python's `random`, effects before a trace that fails, infinite slopes."""

from __future__ import annotations

import torch

from tests.fuzz.growing import Growing, Rejected, family, move

REGISTERED = """
_library = torch.library.Library("fuzzed", "FRAGMENT")
_library.define("opaque(Tensor x) -> Tensor")  # no fake implementation
_library.impl("opaque", lambda x: x * 2, "CPU")
_library.define("read(Tensor x) -> Tensor")  # reads memory in a trace, as TorchScript's operators do
_library.impl("read", lambda x: x * (1 + x.detach().numpy().ndim) / 2, "CompositeImplicitAutograd")
"""
"""Registers operators that PyTorch cannot trace. Scripts that report a finding contain it if they need it."""

exec(REGISTERED, {"torch": torch})

EFFECTS = family(
    "effects",
    {
        "append": "seen.append(len(seen))",
        "number of random": "seen.append(random.randint(0, 9))",
        "edit": "buf.add_(1)",
        "edit of rows": "buf[:1] -= 2",
        "edit of a view": "buf.t()[0].mul_(3)",
    },
)
UNTRACEABLE = family(
    "failing traces",
    {
        "at once": "torch.ops.fuzzed.read({v})",
        "behind a break": "(torch._dynamo.graph_break(), torch.ops.fuzzed.read({v}))[1]",
        "in a function": "(lambda h: torch.ops.fuzzed.read(h) + h)({v})",
        "without a fake": "torch.ops.fuzzed.opaque({v}.detach()) + {v}",
    },
)
RANDOM = family(
    "python random",
    {
        "uniform": "{v} * random.uniform(0.5, 1.5)",
        "random": "{v} + random.random()",
        "gauss": "{v} + random.gauss(0, 1)",
        "randint": "{v} * random.randint(1, 3)",
        "computed": "{v} * (random.uniform(0, 1) * 2 + 1)",
        "own generator": "{v} * random.Random(3).uniform(0, 1)",
        "bound": "{v}.clamp(max=random.uniform(0.5, 2))",
        "branch": "({v} + 1 if random.uniform(0, 1) < 0.5 else {v} * 2)",
    },
)
STEEP = family(
    "infinite slopes",
    {
        "root": "{v}.relu().sqrt()",
        "norm": "({v} * ({v} > 0)).pow(2).sum(-1).sqrt()",
        "power": "{v}.clamp(min=0).pow(0.5)",
        "reciprocal": "1 / (1 + {v}.relu().pow(0.3))",
    },
)


@move(1)
def effects(g: Growing) -> None:
    """Effects, and then a call that ends the trace in which they stand."""
    before = len(g.statements)
    v = g.pick(fits=g.dims(1, 2, 3))
    g.run(g.spell(EFFECTS))
    try:
        g.new(g.spell(UNTRACEABLE, v=v.name), v.rows)
    except Rejected:
        g.take_back(before)
        raise


@move(1)
def numbers_of_python(g: Growing) -> None:
    v = g.pick(fits=g.dims(1, 2, 3))
    g.new(g.spell(RANDOM, v=v.name), v.rows)


@move(1)
def steep(g: Growing) -> None:
    v = g.pick(fits=g.dims(2, 3))
    g.new(g.spell(STEEP, v=v.name), v.rows)
