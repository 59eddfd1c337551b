"""Moves with numbers at the ends of their types: integers that no float holds, zeros with a sign, NaN, infinities.

Integers are judged by every bit. Floats are judged in two parts, so that a finite number, which gradients need, is
returned: their values between limits, and their signs and kinds as integers.
"""

from __future__ import annotations

import torch

from tests.fuzz.growing import Growing, Value, family, move

WHOLE_STARTS = family(
    "start values of integers",
    {
        "amin": "{v}.new_full(({n},), {s}).scatter_reduce(0, {m}.long(), {v}[{k}], 'amin')",
        "amax": "{v}.new_full(({n},), {s}).scatter_reduce(0, {m}.long(), {v}[{k}], 'amax')",
        "amin without": "{v}.new_full(({n},), {s}).scatter_reduce(0, {m}.long(), {v}[{k}], 'amin', include_self=False)",
        "sum": "{v}.new_full(({n},), {s}).scatter_reduce(0, {m}.long(), {v}[{k}], 'sum')",
        "sum without": "{v}.new_full(({n},), {s}).scatter_reduce(0, {m}.long(), {v}[{k}], 'sum', include_self=False)",
        "prod": "{v}.new_full(({n},), {s}).scatter_reduce(0, {m}.long(), {v}[{k}], 'prod')",
        "index_add": "torch.full(({n},), {s}, dtype={v}.dtype).index_add(0, {m}, {v}[{k}])",
        "index_add alpha": "{v}.new_zeros({n}).index_add(0, {m}, {v}[{k}], alpha={t})",
        "columns": "{v}.new_full(({n}, 2), {s}).scatter_reduce(0, {m}.long()[:, None].expand(-1, 2), "
        "torch.stack([{v}, -{v}], 1)[{k}], 'amax')",
        "of all rows": "{v}[{k}].amin(0) + {v}.new_full(({n},), {s})",
    },
)
WHOLE = family(
    "integers at their ends",
    {
        "plus": "{v} + {s}",
        "minus": "{v} - {s}",
        "times": "{v} * {s}",
        "from": "{s} - {v}",
        "negative": "-{v}",
        "abs": "{v}.abs()",
        "where": "torch.where({v} > {t}, {v}, {s})",
        "masked_fill": "{v}.masked_fill({v} == {t}, {s})",
        "clamp": "{v}.clamp(max={s})",
        "clamp both": "{v}.clamp({s}, {t})",
        "maximum": "torch.maximum({v}, torch.full_like({v}, {s}))",
        "less": "{v} + ({v} < {s})",
        "equal": "({v} == {s}).to({v}.dtype)",
        "constant": "torch.full_like({v}, {s}) - {v}",
        "narrowed": "{v} + torch.full_like({v}, {s}).to(torch.int16).to({v}.dtype)",
    },
)
ODD_STARTS = family(
    "start values of odd floats",
    {
        "amax": "{v}.new_full(({n}, {v}.size(1)), {s}).scatter_reduce(0, {m}.long()[:, None].expand(-1, {v}.size(1)), "
        "{v}[{k}], 'amax')",
        "amin without": "{v}.new_full(({n}, {v}.size(1)), {s}).scatter_reduce(0, "
        "{m}.long()[:, None].expand(-1, {v}.size(1)), {v}[{k}], 'amin', include_self=False)",
        "one dim": "{v}.new_full(({n},), {s}).scatter_reduce(0, {m}.long(), {v}[{k}, 0], 'amin')[:, None]",
        "copied": "{v}.index_select(0, {k}.long()[:1]).expand({n}, -1) + {s}",
    },
)
ODD = family(
    "odd floats",
    {
        "plus zero": "{v} + 0.0",
        "zero plus": "0.0 + {v}",
        "plus": "{v} + {s}",
        "minus": "{v} - {s}",
        "from": "{s} - {v}",
        "times": "{v} * {s}",
        "times one": "{v} * 1.0 / 1",
        "sum of a list": "sum([{v}])",
        "negative": "-{v}",
        "abs": "{v}.abs() * -1.0",
        "where": "torch.where({v} > 0, {v}, {s})",
        "masked_fill": "{v}.masked_fill({v} == 0, {s})",
        "not a number": "{v}.masked_fill({v}.isnan(), {s})",
        "relu": "{v}.relu()",
        "clamp": "{v}.clamp(min=0.0)",
        "clamp to": "{v}.clamp(max={s})",
        "relu6": "F.relu6({v})",
        "half": "{v}.half().double()",
        "constant": "torch.full_like({v}, {s}).float().double() * {v}",
    },
)

INTEGERS = (2**63 - 1, -(2**63), 2**63 - 2, -(2**63) + 1, 2**53 + 1, -(2**53) - 1, 2**31, 2**31 - 1, -(2**31), 300, 255,
            128, -128, 1, 0, -1)  # fmt: skip
FLOATS = ("-0.0", "0.0", "math.inf", "-math.inf", "math.nan", "1e300", "5e-324", "0.1")


def _ends(g: Growing, v: Value) -> dict[str, str]:
    """Two numbers, mostly ones that the type of `v` holds."""
    info = torch.iinfo(g.environments[0][v.name].dtype)
    held = [n for n in (*INTEGERS, info.max, info.min) if info.min <= n <= info.max]
    return {name: str(g.choose(held if g.rng.random() < 0.9 else INTEGERS)) for name in "st"}


def _judged(g: Growing, v: Value) -> None:
    """Adds what is returned of an odd value."""
    g.new(f"torch.where({v.name}.isnan(), 2, {v.name}.signbit().long())", v.rows, "whole floats")
    g.new(f"{v.name}.nan_to_num(0.5, 7.0, -7.0).clamp(-9.0, 9.0)", v.rows)


@move(4)
def whole_numbers(g: Growing) -> None:
    v = g.pick(kind="whole")
    g.new(g.spell(WHOLE, v=v.name, **_ends(g, v)), v.rows, "whole")


@move(5)
def start_of_whole_numbers(g: Growing) -> None:
    v = g.pick(kind="whole", fits=g.dims(1))
    k = g.pick(kind="map", into=v.rows)
    m = g.pick(k.rows, "map")
    text = g.spell(WHOLE_STARTS, v=v.name, k=k.name, m=m.name, n=g.rows_of(m.into), **_ends(g, v))
    g.new(text, m.into, "whole")


@move(4)
def odd_floats(g: Growing) -> None:
    v = g.pick(kind="odd")
    _judged(g, g.new(g.spell(ODD, v=v.name, s=g.choose(FLOATS)), v.rows, "odd"))


@move(3)
def start_of_odd_floats(g: Growing) -> None:
    v = g.pick(kind="odd")
    k = g.pick(kind="map", into=v.rows)
    m = g.pick(k.rows, "map")
    text = g.spell(ODD_STARTS, v=v.name, k=k.name, m=m.name, n=g.rows_of(m.into), s=g.choose(FLOATS))
    _judged(g, g.new(text, m.into, "odd"))
