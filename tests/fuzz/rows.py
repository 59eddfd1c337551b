"""Moves between rows: gathers, scatters, several maps, masks, and all else by which one row depends on another."""

from __future__ import annotations

from tests.fuzz.growing import Growing, Value, family, move

GATHER = family(
    "gather",
    {
        "index": "{v}[{m}]",
        "index row": "{v}[{m}, :]",
        "index ellipsis": "{v}[{m}, ...]",
        "index_select": "{v}.index_select(0, {m})",
        "index_select function": "torch.index_select({v}, 0, {m})",
        "gather": "{v}.gather(0, {m}.view(-1, 1).expand(-1, {v}.size(1)).long())",
        "gather expand_as": "torch.gather({v}, 0, {m}.long().unsqueeze(-1).expand({m}.size(0), {v}.size(-1)))",
        "gather one dim": "{v}.gather(0, {m}.long())",
        "embedding": "F.embedding({m}, {v})",
        "take_along_dim": "torch.take_along_dim({v}, {m}.long()[:, None], 0)",
        "transposed": "{v}.t()[:, {m}].t()",
        "column of an index": "{v}[{m}.unsqueeze(1)].squeeze(1)",
        "one_hot": "F.one_hot({m}.long(), {v}.size(0)).to({v}.dtype) @ {v}",
        "take": "{v}.take({m}.long())",
    },
)
ZEROS = family(
    "zeros",
    {
        "new_zeros": "{v}.new_zeros({n}, *{v}.shape[1:])",
        "zeros": "torch.zeros(({n},) + {v}.shape[1:], dtype={v}.dtype)",
        "zeros_like": "torch.zeros_like({v}[:1]).expand({n}, *{v}.shape[1:]).clone()",
        "new_full": "{v}.new_full(({n}, *{v}.shape[1:]), 0.5)",
        "ones": "torch.ones({n}, *{v}.shape[1:], dtype=torch.float64)",
    },
)
SCATTER = family(
    "scatter",
    {
        "index_add": "{z}.index_add(0, {m}, {v})",
        "index_add alpha": "{z}.index_add(0, {m}, {v}, alpha=-2)",
        "index_add_": "{z}.index_add_(0, {m}, {v})",
        "scatter_add": "{z}.scatter_add(0, {m}.long().view(-1, *[1] * ({v}.dim() - 1)).expand_as({v}), {v})",
        "scatter_add_": "{z}.scatter_add_(0, {m}.long().unsqueeze(-1).expand_as({v}), {v})",
        "scatter_add one dim": "{z}.scatter_add(0, {m}.long(), {v})",
        "scatter_reduce sum": "{z}.scatter_reduce(0, {m}.long()[:, None].expand_as({v}), {v}, reduce='sum')",
        "scatter_reduce mean": "{z}.scatter_reduce(0, {m}.long()[:, None].expand_as({v}), {v}, 'mean', "
        "include_self=False)",
        "scatter_reduce amax": "{z}.scatter_reduce(0, {m}.long()[:, None].expand_as({v}), {v}, 'amax')",
        "scatter_reduce amin": "{z}.scatter_reduce(0, {m}.long()[:, None].expand_as({v}), {v}, 'amin', "
        "include_self=False)",
        "scatter_reduce one dim": "{z}.scatter_reduce(0, {m}.long(), {v}, 'amax', include_self=False)",
        "index_reduce mean": "{z}.index_reduce(0, {m}, {v}, 'mean')",
        "index_reduce amax": "{z}.index_reduce(0, {m}, {v}, 'amax', include_self=False)",
        "index_reduce amin": "{z}.index_reduce(0, {m}, {v}, 'amin')",
        "index_put": "{z}.index_put(({m},), {v}, accumulate=True)",
        "index_put_": "{z}.index_put_(({m}.long(),), {v}, accumulate=True)",
        "scatter add": "{z}.scatter(0, {m}.long()[:, None].expand_as({v}), {v}.detach(), reduce='add')",
        "index_add columns": "{z}.t().contiguous().index_add(1, {m}, {v}.t()).t()",
        "one_hot": "F.one_hot({m}.long(), {n}).to({v}.dtype).t() @ {v}",
        "pyg sum": "pyg.scatter({v}, {m}.long(), 0, dim_size={n}, reduce='sum')",
        "pyg mean": "pyg.scatter({v}, {m}.long(), 0, dim_size={n}, reduce='mean')",
        "pyg max": "pyg.scatter({v}, {m}.long(), 0, dim_size={n}, reduce='max')",
        "pyg min": "pyg.scatter({v}, {m}.long(), 0, dim_size={n}, reduce='min')",
        "pyg mul": "pyg.scatter(({v}).tanh(), {m}.long(), 0, dim_size={n}, reduce='mul')",
        "mean by bincount": "{z}.index_add(0, {m}, {v}) / "
        "torch.bincount({m}, minlength={n}).clamp(min=1).view(-1, *[1] * ({v}.dim() - 1))",
        "mean by ones": "{z}.index_add(0, {m}, {v}) / "
        "({v}.new_zeros({n}).index_add(0, {m}, {v}.new_ones({m}.size(0))) + 1)[(...,) + (None,) * ({v}.dim() - 1)]",
        "loop over columns": "torch.stack([{v}.new_zeros({n}).index_add(0, {m}, c) for c in {v}.unbind(1)], dim=1)",
    },
)
SEGMENT = family(
    "segment",
    {
        "segment_reduce": "torch.segment_reduce({v}, 'sum', lengths=torch.bincount({m}, minlength={n}), axis=0)",
        "segment_reduce max": "torch.segment_reduce({v}, 'max', lengths=torch.bincount({m}, minlength={n}), axis=0, "
        "initial=0.0)",
        "segment_reduce mean": "torch.segment_reduce({v}, 'mean', lengths=torch.bincount({m}, minlength={n}), axis=0, "
        "initial=0.0)",
        "pyg segment": "pyg.segment({v}, F.pad(torch.bincount({m}, minlength={n}).cumsum(0), (1, 0)), reduce='sum')",
        "cumsum": "(lambda c: c[1:] - c[:-1])(F.pad({v}.cumsum(0), (0, 0, 1, 0))"
        "[F.pad(torch.bincount({m}, minlength={n}).cumsum(0), (1, 0))])",
    },
)
SOFTMAX = family(
    "softmax over rows",
    {
        "pyg": "pyg.softmax({v}, {m}.long(), num_nodes={n})",
        "stable": "(lambda t: t / {v}.new_zeros({n}, *{v}.shape[1:]).index_add(0, {m}, t)[{m}])(({v} - "
        "torch.full(({n}, *{v}.shape[1:]), -torch.inf, dtype={v}.dtype).scatter_reduce(0, "
        "{m}.long().view(-1, *[1] * ({v}.dim() - 1)).expand_as({v}), {v}, 'amax')[{m}]).exp())",
        "plain": "(lambda t: t / ({v}.new_zeros({n}, *{v}.shape[1:]).index_add(0, {m}, t).index_select(0, {m}) + "
        "1e-16))(torch.tanh({v}).exp())",
        "norm by degree": "{v} * (lambda d: d.pow(-0.5).masked_fill(d == 0, 0.))(pyg.degree({m}, {n}, "
        "dtype={v}.dtype))[{m}].view(-1, *[1] * ({v}.dim() - 1))",
    },
)
COUNT = family(
    "count",
    {
        "bincount": "torch.bincount({m}, minlength={n}).to(torch.float64)",
        "degree": "pyg.degree({m}, {n}, dtype=torch.float64)",
        "ones": "torch.zeros({n}, dtype=torch.float64).index_add_(0, {m}, torch.ones({m}.size(0), "
        "dtype=torch.float64))",
        "one_hot": "F.one_hot({m}.long(), {n}).sum(0).double()",
        "long": "torch.zeros({n}, dtype=torch.long).scatter_add(0, {m}.long(), torch.ones_like({m}).long()) / 2",
        "compare": "({m}.view(-1, 1) == torch.arange({n})).sum(0) * 1.0",
    },
)
MASK = family(
    "mask",
    {
        "compare maps": "{m} != {k}",
        "less": "{m} < {k}",
        "constant": "{m} > 1",
        "real": "({r} if {r}.dim() == 1 else {r}.flatten(1).sum(1)) > 0.1",
        "and": "({m} != {k}) & ({m} > 0)",
        "not": "~({m} == {k})",
        "any": "({r}.reshape({m}.size(0), -1) > 1).any(1)",
    },
)
MASKED = family(
    "masked rows",
    {
        "mask": "{v}[{b}]",
        "mask row": "{v}[{b}, ...]",
        "nonzero": "{v}[{b}.nonzero().view(-1)]",
        "nonzero tuple": "{v}[{b}.nonzero(as_tuple=True)[0]]",
        "nonzero squeeze": "{v}.index_select(0, torch.nonzero({b}).squeeze(1))",
        "masked_select": "{v}.masked_select({b}.view(-1, *[1] * ({v}.dim() - 1))).view(-1, *{v}.shape[1:])",
        "where": "{v}[torch.where({b})[0]]",
    },
)
ENDS = family(
    "edge_index",
    {
        "rows": "{a} = ei[0]\n{b} = ei[1]",
        "unbind": "{a}, {b} = ei.unbind(0)",
        "unpack": "{a}, {b} = ei",
        "flip": "{b}, {a} = ei.flip(0)[0], ei.flip(0)[1].contiguous()",
        "select": "{a} = ei.select(0, 0)\n{b} = ei[1, :]",
        "sorted": "p = ei[1].argsort(stable=True)\n{a}, {b} = ei[0], ei[1]",
    },
)
ORDER = family(
    "order of edges",
    {
        "argsort": "torch.argsort({m}, stable=True)",
        "sort": "{m}.sort(stable=True)[1]",
        "sort of values": "{e}.reshape({m}.size(0), -1)[:, 0].argsort()",
        "topk": "torch.topk({e}.reshape({m}.size(0), -1)[:, 0], {m}.size(0) // 2).indices",
        "flip": "torch.arange({m}.size(0)).flip(0)",
        "first half": "torch.arange({m}.size(0) // 2)",
        "descending": "torch.sort({m}, descending=True, stable=True).indices",
    },
)
UNIQUE = family(
    "unique",
    {
        "inverse": "{u}, {u}_of = torch.unique({m}, return_inverse=True)",
        "counts": "{u}, {u}_of, {u}_n = {m}.unique(return_inverse=True, return_counts=True)",
    },
)
KEPT = family(
    "mask as a factor",
    {
        "masked_fill": "{v}.masked_fill({b}.view(-1, *[1] * ({v}.dim() - 1)), 0.)",
        "where": "torch.where({b}.view(-1, *[1] * ({v}.dim() - 1)), {v}, -{v})",
        "times": "{v} * {b}.view(-1, *[1] * ({v}.dim() - 1))",
        "to dtype": "{v} * {b}.to({v}.dtype).view(-1, *[1] * ({v}.dim() - 1))",
        "where scalar": "torch.where({b}[(...,) + (None,) * ({v}.dim() - 1)], {v}, 0.)",
        "masked_scatter": "torch.zeros_like({v}).masked_scatter({b}.view(-1, *[1] * ({v}.dim() - 1)).expand_as({v}), "
        "{v})",
        "index_put": "{v}.index_put(({b},), {v}[{b}] * 2)",
    },
)


def _gathered(g: Growing, v: Value, m: Value) -> Value:
    return g.new(g.spell(GATHER, v=v.name, m=m.name), m.rows)


@move(12)
def gather(g: Growing) -> None:
    m = g.pick(kind="map")
    _gathered(g, g.pick(m.into), m)


@move(14)
def scatter(g: Growing) -> None:
    m = g.pick(kind="map")
    v = g.pick(m.rows)
    n = g.rows_of(m.into)
    z = g.spell(ZEROS, v=v.name, n=n)
    if g.rng.random() < 0.15:
        z = g.pick(m.into).name + ".clone()"
    g.new(g.spell(SCATTER, v=v.name, m=m.name, n=n, z=z), m.into)


@move(10)
def message(g: Growing) -> None:
    """A gather, weights and a scatter in one expression, which is the most usual form."""
    one, other = g.pick(kind="map"), None
    other = g.pick(rows=one.rows, kind="map", fits=lambda m: m.into != "R")
    x = g.pick(one.into)
    text = g.spell(GATHER, v=x.name, m=one.name)
    part = g.new(text, one.rows)
    weight = g.pick(one.rows)
    if weight != part and g.rng.random() < 0.6:
        part = g.new(f"{part.name} * {weight.name}", one.rows)
    n = g.rows_of(other.into)
    z = g.spell(ZEROS, v=part.name, n=n)
    g.new(g.spell(SCATTER, v=part.name, m=other.name, n=n, z=z), other.into)


@move(3)
def segment(g: Growing) -> None:
    m = g.pick(kind="map", fits=lambda m: m.name in ("batch", "sdst"))
    v = g.pick(m.rows)
    g.new(g.spell(SEGMENT, v=v.name, m=m.name, n=g.rows_of(m.into)), m.into)


@move(5)
def softmax(g: Growing) -> None:
    m = g.pick(kind="map")
    g.new(g.spell(SOFTMAX, v=g.pick(m.rows).name, m=m.name, n=g.rows_of(m.into)), m.rows)


@move(3)
def count(g: Growing) -> None:
    m = g.pick(kind="map", fits=lambda m: m.into != "R")
    g.new(g.spell(COUNT, m=m.name, n=g.rows_of(m.into)), m.into)


@move(4)
def mask(g: Growing) -> None:
    m = g.pick(kind="map")
    k = g.pick(m.rows, "map")
    g.new(g.spell(MASK, m=m.name, k=k.name, r=g.pick(m.rows).name), m.rows, "mask")


@move(5)
def masked(g: Growing) -> None:
    """Rows that a mask keeps, with the maps of the same rows: a graph of fewer edges."""
    b = g.pick(kind="mask")
    rows = f"{b.rows} of {b.name}"
    g.new(g.spell(MASKED, v=g.pick(b.rows).name, b=b.name), rows)
    for _ in range(g.choose((1, 2))):
        m = g.pick(b.rows, "map")
        g.new(f"{m.name}[{b.name}]", rows, "map", m.into)


@move(4)
def mask_factor(g: Growing) -> None:
    b = g.pick(kind="mask")
    g.new(g.spell(KEPT, v=g.pick(b.rows).name, b=b.name), b.rows)


@move(3)
def composed(g: Growing) -> None:
    """A map composed of two others."""
    m = g.pick(kind="map")
    k = g.pick(m.into, "map")
    g.new(g.choose((f"{k.name}[{m.name}]", f"{k.name}.index_select(0, {m.name})")), m.rows, "map", k.into)


@move(3)
def self_loops(g: Growing) -> None:
    """The edges, and one self-loop for each node."""
    m = g.pick("E", "map", "N")
    k = g.pick("E", "map", "N")
    n = g.rows_of("N")
    e = g.pick("E")
    rows = f"E + N of {m.name}"
    x = g.pick("N")
    g.new(f"torch.cat([{m.name}, torch.arange({n})])", rows, "map", "N")
    g.new(f"torch.cat([{k.name}, torch.arange({n})])", rows, "map", "N")
    shape = f"({n}, *{e.name}.shape[1:])"
    filled = g.choose((f"{e.name}.new_ones({shape})", f"torch.ones({shape}, dtype={e.name}.dtype)", x.name))
    g.new(f"torch.cat([{e.name}, {filled}])", rows)


@move(3)
def both_directions(g: Growing) -> None:
    m, k, e = g.pick("E", "map", "N"), g.pick("E", "map", "N"), g.pick("E")
    rows = f"2 E of {m.name} {k.name}"
    g.new(f"torch.cat([{m.name}, {k.name}])", rows, "map", "N")
    g.new(f"torch.cat(({k.name}, {m.name}), dim=0)", rows, "map", "N")
    g.new(g.choose((f"torch.cat([{e.name}, -{e.name}])", f"{e.name}.repeat(2, *[1] * ({e.name}.dim() - 1))")), rows)


@move(4)
def ends(g: Growing) -> None:
    """Both ends of one edge_index."""
    first, second = f"s{g.names}", f"d{g.names}"
    g.run(g.spell(ENDS, a=first, b=second))
    g.values += [Value(first, "E", "map", "N"), Value(second, "E", "map", "N")]


@move(3)
def sorted_edges(g: Growing) -> None:
    """All edges in another order, both maps and values."""
    m, e = g.pick("E", "map"), g.pick("E")
    by = g.new(g.spell(ORDER, m=m.name, e=e.name), "E", "order")
    rows = f"E by {by.name}"
    g.new(f"{e.name}[{by.name}]", rows)
    for k in (m, g.pick("E", "map")):
        g.new(g.choose((f"{k.name}[{by.name}]", f"{k.name}.index_select(0, {by.name})")), rows, "map", k.into)


@move(3)
def unique(g: Growing) -> None:
    """The distinct rows, and for each edge the position of its row among them."""
    m = g.pick(kind="map", fits=lambda m: m.into != "R")
    x = g.pick(m.into)
    name = f"u{g.names}"
    g.run(g.spell(UNIQUE, u=name, m=m.name))
    rows = f"unique {name}"
    g.values.append(Value(f"{name}_of", m.rows, "map", rows))
    g.new(f"{x.name}[{name}]", rows)
