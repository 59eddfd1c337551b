"""Moves that sort, choose, number, tell apart, merge and add up rows: nodes that are kept and their edges, segments,
other edges, running sums."""

from __future__ import annotations

from tests.fuzz.growing import Growing, Move, Value, family, move

MOVES: dict[str, Move] = {}

SCORE = family(
    "score of a row",
    {
        "sum": "{v}.reshape({v}.size(0), -1).sum(1)",
        "detached": "{v}.detach().reshape({v}.size(0), -1).mean(1)",
        "ties": "{v}.detach().reshape({v}.size(0), -1).sum(1).round()",
        "number": "{m} * 1.5",
    },
)
KEPT_ROWS = family(
    "kept rows",
    {
        "two sorts": "{o} = {s}.sort(descending=True, stable=True).indices\n"
        "{p} = {m}[{o}].sort(stable=True)[1]\n"
        "{k} = {o}[{p}[torch.arange({m}.size(0)) - (lambda n: n.cumsum(0) - n)"
        "(torch.bincount({m}, minlength={n}))[{m}[{o}][{p}]] < 2]]",
        "rounded share": "{p}, {o} = torch.sort({s}.view(-1), descending=True, stable=True)\n"
        "{p}, {k} = torch.sort({m}[{o}], descending=False, stable=True)\n"
        "{k} = {o}[{k}[torch.arange({m}.size(0)) - F.pad(pyg.degree({m}, {n}, dtype=torch.long).cumsum(0), (1, 0))"
        "[{p}] < (0.5 * pyg.degree({m}, {n})).ceil().long()[{p}]]]",
        "half of the largest": "{k} = ({s} > pyg.scatter({s}, {m}.long(), 0, dim_size={n}, reduce='max')[{m}] - 0.7)"
        ".nonzero().view(-1)",
        "above": "{k} = torch.where({s} > 0.1)[0]",
        "largest": "{k} = {s}.topk(({m}.size(0) + 1) // 2).indices",
        "sorted first": "{k} = {s}.argsort(stable=True)[: {m}.size(0) // 2]",
        "unique": "{k} = {m}.unique()[: {m}.size(0)]\n{k} = {k}[{k} < {m}.size(0)]",
    },
)
SEGMENT_ORDER = family(
    "order by segment",
    {
        "two sorts": "{o} = {s}.argsort(stable=True)\n{o} = {o}[{m}[{o}].argsort(stable=True)]",
        "falling": "{o} = {s}.argsort(descending=True, stable=True)\n"
        "{o} = {o}[{m}.index_select(0, {o}).sort(stable=True, descending=True).indices]",
        "by a number": "{o} = {m}.sort(stable=True).indices",
        "three sorts": "{o} = {s}.argsort(stable=True)\n{o} = {o}[{m}[{o}].argsort(stable=True)]\n"
        "{o} = {o}[({m}[{o}] % 2).argsort(stable=True)]",
    },
)
NUMBERS = family(
    "numbers of rows",
    {
        "place": "torch.argsort(torch.argsort({m}, stable=True))",
        "running total": "{m}.cumsum(0)",
        "place in a segment": "(lambda o, n: (torch.arange({m}.size(0)) - (n.cumsum(0) - n)[{m}[o]])[o.argsort()])"
        "({m}.argsort(stable=True), torch.bincount({m}, minlength={n}))",
        "rank of a value": "(torch.unique({m}, return_inverse=True)[1])",
        "number of a mask": "({m} > 0).cumsum(0) - 1",
    },
)
OTHER_EDGES = family(
    "other edges",
    {
        "coalesce": "pyg.coalesce({e}, num_nodes={n})",
        "coalesce columns": "pyg.coalesce({e}, sort_by_row=False)",
        "to_undirected": "pyg.to_undirected({e}, num_nodes={n})",
        "remove_self_loops": "pyg.remove_self_loops({e})[0]",
        "add_self_loops": "pyg.add_self_loops({e}, num_nodes={n})[0]",
        "add_remaining_self_loops": "pyg.add_remaining_self_loops({e}, num_nodes={n})[0]",
        "sort_edge_index": "pyg.sort_edge_index({e}, num_nodes={n})",
        "mask": "{e}[:, {e}[0] != {e}[1]]",
        "subgraph": "pyg.subgraph(torch.arange({n}) % 3 > 0, {e}, num_nodes={n})[0]",
        "relabelled": "pyg.subgraph(torch.arange({n}) % 3 > 0, {e}, num_nodes={n}, relabel_nodes=True)[0]",
        "sorted columns": "{e}[:, {e}[1].argsort(stable=True)]",
        "distinct columns": "torch.unique({e}, dim=1)",
        "distinct numbers": "(lambda u: torch.stack([u // {n}, u % {n}]))(torch.unique({e}[0] * {n} + {e}[1]))",
    },
)

RUNNING_SUM = family(
    "running sum",
    {
        "of all rows before": "{v}.cumsum(0)",
        "of a dtype": "torch.cumsum({v}, dim=0, dtype={v}.dtype)",
        "of all rows after": "{v}.flip(0).cumsum(0).flip(0)",
        "of rows before alone": "({v}.cumsum(0) - {v})",
        "of the same segment": "(lambda c, n: (c - torch.cat([torch.zeros_like(c[:1]), c])[(n.cumsum(0) - n)[{m}]]))"
        "({v}.cumsum(0), torch.bincount({m}, minlength={n}))",
        "of features": "{v}.cumsum(-1)",
    },
)
DISTINCT = family(
    "distinct rows",
    {
        "of numbers": "{u}, {r}, {c} = torch.unique({m}, return_inverse=True, return_counts=True)",
        "of numbers, counted later": "{u}, {r} = {m}.unique(return_inverse=True)\n"
        "{c} = torch.bincount({r}, minlength={u}.size(0))",
        "of runs": "{u}, {r}, {c} = {m}.sort(stable=True).values.unique_consecutive("
        "return_inverse=True, return_counts=True)",
    },
)


@move(3, MOVES)
def running_sums(g: Growing) -> None:
    m = g.pick(kind="map", fits=lambda m: m.into != "R")
    v = g.pick(m.rows)
    sums = g.spell(RUNNING_SUM, v=v.name, m=m.name, n=g.rows_of(m.into))
    g.new(f"({sums}) / (1 + {v.name}.size(0))", m.rows)


@move(3, MOVES)
def distinct_rows(g: Growing) -> None:
    """The numbers that differ in an index, with what their rows add up to."""
    m = g.pick(kind="map", fits=lambda m: m.into != "R")
    v = g.pick(m.rows)
    names = {word: f"{word}{g.names}" for word in "urc"}
    for line in g.spell(DISTINCT, m=m.name, **names).splitlines():
        g.run(line)
    u, r, c = names.values()
    rows = f"distinct {u}"
    sums = f"torch.zeros({u}.size(0), *{v.name}.shape[1:], dtype={v.name}.dtype).index_add(0, {r}, {v.name})"
    g.new(f"{sums} / {c}.view(-1, *[1] * ({v.name}.dim() - 1))", rows)
    g.values += [Value(u, rows, "map", m.into), Value(r, m.rows, "map", rows)]


@move(5, MOVES)
def kept_rows(g: Growing) -> None:
    """Some rows of each segment by a score, as a pooling layer keeps them, and the edges between nodes that are
    kept."""
    m = g.pick(kind="map", fits=lambda m: m.into != "R")
    names = {word: f"{word}{g.names}" for word in ("o", "p", "k")}
    score = g.spell(SCORE, v=g.pick(m.rows).name, m=m.name)
    lines = g.spell(KEPT_ROWS, s=f"({score})", m=m.name, n=g.rows_of(m.into), **names)
    for line in lines.splitlines():
        g.run(line)
    kept, rows = names["k"], f"kept {names['k']}"
    g.values.append(Value(kept, rows, "map", m.rows))
    g.new(f"{g.pick(m.rows).name}[{kept}]", rows)
    if m.rows == "N":
        n = g.rows_of("N")
        place = f"({kept}.new_full(({n},), -1).index_put(({kept},), torch.arange({kept}.size(0))))"
        first, second = g.pick("E", "map", "N"), g.pick("E", "map", "N")
        g.run(f"a{kept}, b{kept} = {place}[{first.name}], {place}[{second.name}]")
        g.run(f"c{kept} = (a{kept} >= 0) & (b{kept} >= 0)")
        for end in "ab":
            g.new(f"{end}{kept}[c{kept}]", f"edges of {kept}", "map", rows)
        g.new(f"{g.pick('E').name}[c{kept}]", f"edges of {kept}")


@move(3, MOVES)
def sorted_segments(g: Growing) -> None:
    """All rows in the order of their segments, and in each by a score."""
    m = g.pick(kind="map")
    name = f"o{g.names}"
    score = g.spell(SCORE, v=g.pick(m.rows).name, m=m.name)
    for line in g.spell(SEGMENT_ORDER, s=f"({score})", m=m.name, o=name).splitlines():
        g.run(line)
    rows = f"sorted {name}"
    g.values.append(Value(name, rows, "map", m.rows))
    g.new(f"{g.pick(m.rows).name}[{name}]", rows)
    g.new(f"{m.name}[{name}]", rows, "map", m.into)


@move(2, MOVES)
def numbers(g: Growing) -> None:
    m = g.pick(kind="map", fits=lambda m: m.into != "R")
    v = g.pick(m.rows)
    number = g.spell(NUMBERS, m=m.name, n=g.rows_of(m.into))
    g.new(f"{v.name} * (({number}) % 7).view(-1, *[1] * ({v.name}.dim() - 1))", m.rows)


@move(3, MOVES)
def other_edges(g: Growing) -> None:
    """Another edge_index made of the edges, and both of its ends."""
    first, second = g.pick("E", "map", "N"), g.pick("E", "map", "N")
    name = f"j{g.names}"
    both = g.choose(("ei", f"torch.stack([{first.name}.long(), {second.name}.long()])"))
    g.run(f"{name} = {both}")
    g.run(f"{name} = {g.spell(OTHER_EDGES, e=name, n=g.rows_of('N'))}")
    relabelled = "relabel_nodes" in g.statements[-1]
    for i in range(2):
        g.new(f"{name}[{i}]", f"edges of {name}", "map", f"nodes of {name}" if relabelled else "N")
