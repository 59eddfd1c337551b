"""Moves of programs with rows in several dims: batches of nodes, rows behind features, heads, tables of neighbours.

What a dim of a value counts is read from its sizes at the two sets of sizes tried, which all differ. P counts the items
of a batch and K the neighbours of a node.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tests.fuzz import dense, views
from tests.fuzz.case import Argument
from tests.fuzz.growing import TRIED, Growing, Move, Rejected, Value, family, move

ARGUMENTS = (
    Argument("pz", "torch.randn(P, N, D, dtype=torch.float64)", True),
    Argument("zp", "torch.randn(N, P, D, dtype=torch.float64)", True),
    Argument("pf", "torch.randn(P, D, N, dtype=torch.float64)", True),
    Argument("ph", "torch.randn(P, 2, N, D, dtype=torch.float64)", True),
    Argument("pn", "torch.randn(P, N, dtype=torch.float64)", True),
    Argument("hz", "torch.randn(2, N, D, dtype=torch.float64)", True),
    Argument("pg", "torch.randn(P, 1, D, dtype=torch.float64)", True),
    Argument("pv", "torch.randn(P, dtype=torch.float64)", True),
    Argument("pe", "torch.randn(P, E, D, dtype=torch.float64)", True),
    Argument("ke", "torch.randn(N, K, D, dtype=torch.float64)", True),
    Argument("pk", "torch.randn(P, N, K, dtype=torch.float64)", True),
    Argument("near", "torch.randint(max(N, 1), (N, K))"),
    Argument("near32", "torch.randint(max(N, 1), (N, K), dtype=torch.int32)"),
    Argument("nears", "torch.randint(max(N, 1), (P, N, K))"),
    Argument("pdst", "torch.randint(max(N, 1), (P, E))"),
    Argument("pmask", "torch.rand(P, N) > 0.4"),
    Argument("kmask", "torch.rand(N, K) > 0.3"),
)

GIVEN = (
    *(Value(name, "P") for name in ("pz", "pf", "ph", "pn", "pg", "pv", "pe", "pk")),
    *(Value(name, "N") for name in ("zp", "ke")),
    Value("hz", "H"),
    *(Value(name, "N", "table", "N") for name in ("near", "near32")),
    Value("nears", "P", "table", "N"),
    Value("pdst", "P", "table", "N"),
    Value("pmask", "P", "product mask"),
    Value("kmask", "N", "product mask"),
    Value("nmask", "N", "product mask"),
    Value("emask", "E", "product mask"),
)

TRIED_ALSO = ({"P": 2, "K": 3}, {"P": 5, "K": 4})
"""Sizes of P and K beside those of `TRIED`."""

USUAL = {"P": (2, 4), "K": (2, 5)}
AWKWARD = (
    {"P": 1}, {"K": 1}, {"P": 0}, {"E": 0}, {"K": 0}, {"P": 1, "N": 1, "E": 1, "K": 1},
    {"P": 3, "N": 3, "E": 3, "K": 3, "M": 3}, {"P": 4, "N": 4, "E": 4, "K": 2}, {"P": 2, "N": 2, "K": 2},
    {"P": 1, "N": 5, "E": 5}, {"N": 1, "E": 3, "K": 2}, {"P": 9, "N": 40, "E": 150, "K": 6},
)  # fmt: skip

MOVES: dict[str, Move] = {}
"""Moves of these programs, which also have some of the other programs'."""

LETTERS = "NMEBDPK"
_SIZES = tuple({**one, **other} for one, other in zip(TRIED, TRIED_ALSO, strict=True))


def letters(g: Growing, value: Value) -> str:
    """What each dim of a value counts, in one letter: one of `LETTERS`, a digit, or "?"."""
    by_sizes = {tuple(s[letter] for s in _SIZES): letter for letter in LETTERS}
    by_sizes |= {(n, n): str(n) for n in range(10)}
    shapes = [env[value.name].shape for env in g.environments]
    return "".join(by_sizes.get(pair, "?") for pair in zip(*shapes, strict=True))


def pick(g: Growing, fits: Callable[[str], bool], kind: str = "real", other: Value | None = None) -> tuple[Value, str]:
    """A value whose letters fit, and these; not `other`."""
    value = g.pick(kind=kind, fits=lambda v: v != other and fits(letters(g, v)))
    return value, letters(g, value)


def add(g: Growing, text: str) -> None:
    """Adds a value; a statement that gives a number without rows is as good as another."""
    made = g.new(text, "")
    known = letters(g, made)
    g.values[-1] = Value(made.name, known[0] if known and known[0] in LETTERS else "")


def _rows_along(g: Growing, letter: str) -> tuple[Value, str, int]:
    """A value with that letter, its letters, and the dim: not always the only place where rows could stand."""
    v, known = pick(g, lambda of: letter in of and len(of) > 1 + (of[0] == letter and g.rng.random() < 0.7))
    return v, known, g.choose([d for d, of in enumerate(known) if of == letter])


def _words(v: Value, known: str, d: int) -> dict[str, str]:
    """Words for spellings that work along dim d: colons in front, colons behind, and a view of one dim among others."""
    last = len(known) - 1
    return {
        "v": v.name,
        "d": dim_text(d, last),
        "c": ":, " * d,
        "t": ", :" * (last - d),
        "view": ", ".join("-1" if k == d else "1" for k in range(last + 1)),
        "expand": ", ".join("-1" if k == d else f"{v.name}.size({k})" for k in range(last + 1)),
    }


def dim_text(d: int, last: int) -> str:
    """A dim, counted from whichever end it is nearer to."""
    return str(d) if d <= last - d else str(d - last - 1)


# ---------------------------------------------------------------- along an index of one dim

PICKED = family(
    "rows picked in a batch",
    {
        "index_select": "{v}.index_select({d}, {m})",
        "index": "{v}[{c}{m}]",
        "index ellipsis": "{v}[..., {m}{t}]",
        "index from the end": "{v}[{c}{m} - {v}.size({d})]",
        "index from either end": "{v}[{c}torch.where({m} % 2 == 0, {m}, {m} - {v}.size({d}))]",
        "gather": "torch.gather({v}, {d}, {m}.long().view({view}).expand({expand}))",
        "take_along_dim": "torch.take_along_dim({v}, {m}.long().view({view}), {d})",
        "movedim": "{v}.movedim({d}, 0)[{m}].movedim(0, {d})",
        "transposed": "{v}.transpose({d}, 0).index_select(0, {m})",
        "difference": "{v}[{c}{m}] - {v}.index_select({d}, {m}.flip(0))",
        "vmap": "torch.vmap(lambda t: t[{m}])({v})",
        "contiguous": "{v}[{c}{m}].contiguous() * 2",
    },
)
START = family(
    "start values in a batch",
    {
        "new_zeros": "{v}.new_zeros({shape})",
        "zeros": "torch.zeros({shape}, dtype={v}.dtype)",
        "zeros of a tuple": "torch.zeros(({shape}), dtype={v}.dtype)",
        "full": "torch.full(({shape}), 0.5, dtype=torch.float64)",
        "a feature": "{v}.new_ones(()).expand({shape})",
    },
)
BROUGHT = family(
    "rows brought in a batch",
    {
        "index_add": "{z}.index_add({d}, {m}, {v})",
        "index_add alpha": "{z}.index_add({d}, {m}, {v}, alpha=-2)",
        "index_add_": "{z}.clone().index_add_({d}, {m}, {v})",
        "scatter_add": "{z}.scatter_add({d}, {m}.long().view({view}).expand({expand}), {v})",
        "scatter_add expand_as": "torch.scatter_add({z}, {d}, {m}.long().view({view}).expand_as({v}), {v})",
        "scatter_reduce mean": "{z}.scatter_reduce({d}, {m}.long().view({view}).expand_as({v}), {v}, 'mean', "
        "include_self=False)",
        "scatter_reduce amax": "{z}.scatter_reduce({d}, {m}.long().view({view}).expand_as({v}), {v}, 'amax')",
        "scatter_reduce amin": "{z}.scatter_reduce({d}, {m}.long().view({view}).expand_as({v}), {v}, 'amin', "
        "include_self=False)",
        "scatter_reduce prod": "{z}.scatter_reduce({d}, {m}.long().view({view}).expand_as({v}), {v}.clamp(-1, 1), "
        "'prod')",
        "index_reduce": "torch.index_reduce({z}, {d}, {m}, {v}, 'amax')",
        "movedim": "{z}.movedim({d}, 0).index_add(0, {m}, {v}.movedim({d}, 0)).movedim(0, {d})",
        "pyg sum": "pyg.scatter({v}, {m}.long(), {d}, dim_size={n})",
        "pyg mean": "pyg.scatter({v}, {m}.long(), {d}, dim_size={n}, reduce='mean')",
        "pyg max": "pyg.scatter({v}, {m}.long(), {d}, dim_size={n}, reduce='max')",
        "softmax": "pyg.softmax({v}, {m}.long(), num_nodes={n}, dim={d})",
        "index_copy": "{z}.index_copy({d}, {m}, {v})",
        "vmap": "torch.vmap(lambda t, u: u.index_add(0, {m}, t))({v}, {z})",
    },
)


def size_of(g: Growing, letter: str) -> str:
    """An expression for the size that a letter stands for."""
    if letter.isdigit():
        return letter
    value, known = pick(g, lambda of: letter in of)
    return f"{value.name}.size({known.index(letter)})"


@move(14, MOVES)
def pick_rows(g: Growing) -> None:
    m = g.pick(kind="map", fits=lambda m: m.into in "NM")
    v, known, d = _rows_along(g, m.into)
    add(g, g.spell(PICKED, m=m.name, **_words(v, known, d)))


@move(14, MOVES)
def bring_rows(g: Growing) -> None:
    m = g.pick(kind="map", fits=lambda m: m.into in "NM" and m.name != "batch")
    v, known, d = _rows_along(g, m.rows)
    target = known[:d] + m.into + known[d + 1 :]
    if "?" in target:
        raise Rejected
    n = size_of(g, m.into)
    shape = ", ".join(n if k == d else f"{v.name}.size({k})" for k in range(len(known)))
    start = f"({g.spell(START, v=v.name, shape=shape)})"
    if g.rng.random() < 0.2:
        start = pick(g, lambda of: of == target)[0].name
    add(g, g.spell(BROUGHT, z=start, m=m.name, n=n, **_words(v, known, d)))


# ---------------------------------------------------------------- along tables, and an index for each item

BY_TABLE = family(
    "rows picked by a table",
    {
        "index": "{v}[{c}{m}]",
        "index_select": "{v}.index_select({d}, {m}.reshape(-1)).unflatten({d}, {m}.shape)",
        "flat index": "{v}[{c}{m}.flatten()].unflatten({d}, {m}.shape)",
        "embedding": "F.embedding({m}, {v})",
        "from the end": "{v}[{c}{m} - {v}.size({d})]",
        "column by column": "torch.stack([{v}[{c}{m}[:, 0]], {v}[{c}{m}[:, -1]]], {d} + 1)",
        "sum": "{v}[{c}{m}].sum({d} + 1)",
        "difference": "{v}[{c}{m}].transpose({d}, {d} + 1) - {v}.unsqueeze({d})",
    },
)
BY_ITEM = family(
    "rows picked for each item",
    {
        "two indices": "{v}[torch.arange({v}.size(0)).view({first}), {m}]",
        "two indices, one broadcast": "{v}[torch.arange({v}.size(0)).view({first}).expand_as({m}), {m} - {v}.size(1)]",
        "gather": "torch.gather({v}, 1, {m}.reshape({m}.size(0), -1)[..., None].expand(-1, -1, {v}.size(-1)))",
        "gather of numbers": "torch.gather({v}[..., 0], 1, {m}.flatten(1))",
        "take_along_dim": "torch.take_along_dim({v}, {m}.flatten(1)[..., None], 1).unflatten(1, {m}.shape[1:])",
        "vmap": "torch.vmap(lambda t, i: t[i])({v}, {m})",
        "flat": "{v}.flatten(0, 1)[({m} + torch.arange({v}.size(0)).view({first}) * {v}.size(1)).flatten()]"
        ".view(*{m}.shape, -1)",
        "columns": "{v}[torch.arange({v}.size(0)).view({first}), {m}, :2]",
    },
)
TO_ITEM = family(
    "rows brought for each item",
    {
        "scatter_add": "torch.zeros_like({z}).scatter_add(1, {m}[..., None].expand_as({v}), {v})",
        "index_put": "{z}.index_put((torch.arange({z}.size(0))[:, None], {m}), {v}, accumulate=True)",
        "scatter_reduce": "{z}.scatter_reduce(1, {m}.unsqueeze(-1).expand_as({v}), {v}, 'amax', include_self=False)",
        "mean": "{z}.scatter_reduce(1, {m}.unsqueeze(-1).expand_as({v}), {v}, 'mean')",
        "vmap": "torch.vmap(lambda t, i, u: u.index_add(0, i, t))({v}, {m}, {z})",
        "flat": "torch.zeros_like({z}).flatten(0, 1).index_add(0, ({m} + torch.arange({m}.size(0))[:, None] * "
        "{z}.size(1)).flatten(), {v}.flatten(0, 1)).view_as({z})",
    },
)
TO_TABLE = family(
    "rows brought by a table",
    {
        "index_add": "torch.zeros_like({z}).index_add(0, {m}.flatten(), {v}.flatten(0, 1))",
        "index_put": "{z}.index_put(({m}.long(),), {v}, accumulate=True)",
        "scatter_add": "{z}.scatter_add(0, {m}.long().reshape(-1, 1).expand(-1, {v}.size(-1)), {v}.flatten(0, 1))",
    },
)


@move(8, MOVES)
def pick_by_table(g: Growing) -> None:
    m, _ = pick(g, lambda of: of == "NK", "table")
    v, known, d = _rows_along(g, "N")
    add(g, g.spell(BY_TABLE, m=m.name, **_words(v, known, d)))


@move(10, MOVES)
def pick_by_item(g: Growing) -> None:
    m, of_index = pick(g, lambda of: of[0] == "P", "table")
    v, _ = pick(g, lambda of: of == "PND")
    add(g, g.spell(BY_ITEM, v=v.name, m=m.name, first=", ".join(["-1", *"1" * (len(of_index) - 1)])))


@move(6, MOVES)
def bring_by_item(g: Growing) -> None:
    v, _ = pick(g, lambda of: of == "PED")
    z, _ = pick(g, lambda of: of == "PND")
    add(g, g.spell(TO_ITEM, z=z.name, v=v.name, m="pdst"))


@move(4, MOVES)
def bring_by_table(g: Growing) -> None:
    m, _ = pick(g, lambda of: of == "NK", "table")
    v, _ = pick(g, lambda of: of == "NKD")
    z, _ = pick(g, lambda of: of == "ND")
    add(g, g.spell(TO_TABLE, z=z.name, v=v.name, m=m.name))


# ---------------------------------------------------------------- row by row

PAIRED = family(
    "operands of fewer dims",
    {
        "add": "{v} + {k}",
        "mul": "{v} * {k}",
        "from the left": "{k} - {v}",
        "div": "{v} / ({k}.abs() + 1)",
        "maximum": "torch.maximum({v}, {k})",
        "where": "torch.where({v} > {k}, {v}, {k} * 2)",
        "addcmul": "torch.addcmul({v}, {v}, {k}, value=0.5)",
        "lerp": "torch.lerp({v}, {k}, 0.3)",
        "expanded": "{v} * {k}.expand_as({v})",
        "cat": "torch.cat([{v}, {k}.expand_as({v})], -1)",
        "cat of rows": "torch.cat([{v}, {k}.expand_as({v})], 1)",
        "stack": "torch.stack([{v}, {k}.expand_as({v})], -2)",
        "dot": "({v} * {k}).sum(-1)",
        "scaled": "({v} * {k}).sum(-1, keepdim=True) * {v}",
    },
)
MASKED = family(
    "masks in a batch",
    {
        "where": "torch.where({k}, {v}, 0.0)",
        "masked_fill": "{v}.masked_fill(~{k}, -1.5)",
        "factor": "{v} * {k}.to({v}.dtype)",
        "softmax": "{v}.masked_fill(~{k}, -1e3).softmax(1)",
    },
)
PRODUCT = family(
    "products in a batch",
    {
        "matmul": "{v} @ w",
        "linear": "F.linear({v}, w, bias)",
        "classes": "F.linear({v}, wc.t()).relu() @ wc.t()",
        "einsum": "torch.einsum('...f,fc->...c', {v}, w)",
        "vector": "{v} @ bias",
        "layer_norm": "F.layer_norm({v}, {v}.shape[-1:])",
        "layer_norm weights": "F.layer_norm({v}, ({v}.size(-1),), bias.exp().clamp(max=3), bias)",
        "gram": "torch.matmul({v}, {v}.transpose(-1, -2))",
        "attention": "({v} @ {v}.transpose(-1, -2)).softmax(-1) @ {v}",
        "mlp": "F.silu({v} @ w + bias) @ w",
        "heads": "({v}.unsqueeze(-2) * att).sum(-1)",
    },
)


def _among(g: Growing, k: str, of_k: str, of_v: str) -> str:
    """`k` with dims of size 1 where `v` has a dim that it lacks. Raises Rejected if its dims are not among those."""
    places, at = [], 0
    for letter in of_v:
        take = at < len(of_k) and of_k[at] in (letter, "1")
        places.append(":" if take else "None")
        at += take
    if at < len(of_k):
        raise Rejected
    while places and places[0] == "None" and g.rng.random() < 0.7:
        del places[0]
    return k if all(p == ":" for p in places) else f"{k}[{', '.join(places)}]"


@move(12, MOVES)
def operands(g: Growing) -> None:
    v, known = pick(g, lambda of: len(of) > 1)
    k, of_k = pick(g, lambda of: len(of) <= len(known) and set(of) <= set(known + "1"), other=v)
    add(g, g.spell(PAIRED, v=v.name, k=_among(g, k.name, of_k, known)))


@move(4, MOVES)
def mask(g: Growing) -> None:
    v, known = pick(g, lambda of: len(of) > 1)
    k, of_k = pick(g, lambda of: len(of) <= len(known) and set(of) <= set(known), "product mask")
    add(g, g.spell(MASKED, v=v.name, k=_among(g, k.name, of_k, known)))


@move(8, MOVES)
def product(g: Growing) -> None:
    v, _ = pick(g, lambda of: len(of) > 2 and of[-1] == "D")
    add(g, g.spell(PRODUCT, v=v.name))


@move(5, MOVES)
def pointwise_in_a_batch(g: Growing) -> None:
    v, _ = pick(g, lambda of: len(of) > 2)
    add(g, g.spell(dense.UNARY, v=v.name))


# ---------------------------------------------------------------- over dims

OVER = family(
    "over a dim",
    {
        "sum": "{v}.sum({d})",
        "sum keepdim": "{v} - {v}.sum({d}, keepdim=True) / 4",
        "mean": "{v}.mean({d})",
        "mean keepdim": "{v} * {v}.mean(dim={d}, keepdim=True)",
        "amax": "{v}.amax({d})",
        "amin": "{v}.amin({d}, keepdim=True)",
        "max": "{v}.max({d}).values",
        "prod": "{v}.clamp(-1.5, 1.5).prod({d})",
        "softmax": "{v}.softmax({d})",
        "log_softmax": "F.log_softmax({v}, {d})",
        "logsumexp": "torch.logsumexp({v}, {d})",
        "var": "{v}.var({d}, unbiased=False)",
        "norm": "({v}.square().sum({d}) + 1e-3).sqrt()",
        "normalize": "F.normalize({v} + 0.1, dim={d})",
        "cumsum": "{v}.cumsum({d}) / 4",
        "flip": "{v}.flip({d})",
        "roll": "{v}.roll(1, {d})",
        "first": "{v}.select({d}, 0)",
        "last": "{v}.select({d}, -1)",
        "from the second": "{v}.narrow({d}, 1, {v}.size({d}) - 1)",
        "halves": "sum({v}.chunk(2, {d})[:1])",
        "repeat_interleave": "{v}.repeat_interleave(2, {d})",
        "unbind": "sum({v}.unbind(-1))",
        "sort": "{v}.sort({d}).values",
    },
)
OVER_TWO = family(
    "over two dims",
    {
        "sum": "{v}.sum(({d}, {e}))",
        "mean": "{v}.mean(({d}, {e}))",
        "mean keepdim": "{v} - {v}.mean(({d}, {e}), keepdim=True)",
        "amax": "{v}.amax(({d}, {e}))",
        "one after the other": "{v}.sum({d}, keepdim=True).amax({e}, keepdim=True) + {v}",
        "all": "{v}.mean() * {v}",
        "total": "{v}.sum() / 8",
    },
)


@move(9, MOVES)
def over(g: Growing) -> None:
    v, known = pick(g, lambda of: len(of) > 1)
    add(g, g.spell(OVER, v=v.name, d=dim_text(g.rng.randrange(len(known)), len(known) - 1)))


@move(4, MOVES)
def over_two(g: Growing) -> None:
    v, known = pick(g, lambda of: len(of) > 2)
    d, e = g.rng.sample(range(len(known)), 2)
    add(g, g.spell(OVER_TWO, v=v.name, d=str(d), e=str(e)))


# ---------------------------------------------------------------- views and writes

SHAPED = family(
    "views of a batch",
    {
        "permute": "{v}.permute({order})",
        "permute and back": "{v}.permute({order}).tanh().permute({inverse})",
        "contiguous": "{v}.permute({order}).contiguous()",
        "flatten": "{v}.flatten({d}, {d} + 1)",
        "flatten and back": "torch.sigmoid({v}.flatten({d}, {d} + 1)).unflatten({d}, {v}.shape[{d} : {d} + 2])",
        "reshape": "{v}.reshape(-1, {v}.size(-1))",
        "reshape and back": "({v}.reshape(-1, {v}.size(-1)) * 2).view({v}.shape)",
        "view all": "{v}.reshape(-1)",
        "heads": "{v}.unflatten(-1, (2, -1)).transpose(1, -2)",
        "heads last": "{v}.reshape(*{v}.shape[:-1], 2, -1).sum(-1)",
        "unsqueeze": "{v}.unsqueeze({d})",
        "transpose": "{v}.transpose({d}, {d} + 1)",
        "expand": "{v}.unsqueeze({d}).expand({repeated})",
        "repeat": "{v}.repeat(*[1] * ({v}.dim() - 1), 2)",
        "features": "{v}[..., :2]",
        "features from the end": "{v}[..., -2:] * {v}[..., :1]",
        "one feature": "{v}[..., 1]",
        "even features": "{v}[..., ::2]",
        "features reordered": "{v}[..., torch.tensor([1, 0])]",
        "padded": "F.pad({v}, (1, 0))",
        "item": "{v}[0]",
        "rows from the second": "{v}[:, 1:]",
        "diagonal": "{v}.diagonal(dim1=0, dim2=1)",
        "outer": "{v}.unsqueeze(-1) * {v}.unsqueeze(-2)",
        "squeeze": "{v}.unsqueeze(1).squeeze(1) + 1",
    },
)
SPLIT = family(
    "rows split",
    {
        "view": "{v}.view({first}, -1, *{v}.shape[1:])",
        "reshape": "{v}.reshape({first}, {v}.size(0) // max({first}, 1), *{v}.shape[1:])",
        "unflatten": "{v}.unflatten(0, ({first}, -1))",
    },
)
WRITTEN = family(
    "in place in a batch",
    {
        "feature": "{v}[..., 0] = 0.5",
        "feature added": "{v}[..., :1] += 1",
        "rows": "{v}[:, {m}] = 0.",
        "rows added": "{v}.index_add_(1, {m}, {v}.detach().index_select(1, {m}) * 2)",
        "rows filled": "{v}.index_fill_(1, {m}.long(), -1.)",
        "item": "{v}[0] *= 2",
        "row": "{v}[:, 0] = 1.",
        "all": "{v}.mul_(0.5)",
        "rows from the second": "{v}[:, 1:] -= 1",
    },
)


@move(10, MOVES)
def shape(g: Growing) -> None:
    v, known = pick(g, lambda of: 1 < len(of) < 5)
    order = g.rng.sample(range(len(known)), len(known))
    d = g.rng.randrange(len(known) - 1)
    words = {"order": order, "inverse": [order.index(k) for k in range(len(known))]}
    repeated = ", ".join(["-1"] * d + ["3"] + ["-1"] * (len(known) - d))
    add(g, g.spell(SHAPED, v=v.name, d=str(d), repeated=repeated, **{k: str(o)[1:-1] for k, o in words.items()}))


REPEATED = family(
    "rows repeated",
    {
        "one after the other": "{v}.repeat_interleave(3, {d})",
        "in turn": "{v}.repeat(*[3 if d == {d} else 1 for d in range({v}.dim())])",
        "runs by a formula": "{v}.index_select({d}, torch.arange({v}.size({d}) * 3) // 3)",
        "in turn by a formula": "{v}.index_select({d}, torch.arange({v}.size({d}) * 3) % max({v}.size({d}), 1))",
        "runs summed": "torch.tanh({v}.repeat_interleave(3, {d})).unflatten({d}, (-1, 3)).sum({d} + 1)",
        "turns summed": "torch.sin(torch.cat([{v}, {v} * 2], {d})).unflatten({d}, (2, -1)).sum({d})",
    },
)


@move(4, MOVES)
def repeat_rows(g: Growing) -> None:
    v, known = pick(g, lambda of: 1 < len(of) < 5)
    g.rng.shuffle(dims := [d for d, letter in enumerate(known) if letter in "NMEPK"])
    if not dims:
        raise Rejected
    add(g, g.spell(REPEATED, v=v.name, d=str(dims[0])))


@move(3, MOVES)
def split(g: Growing) -> None:
    """Rows of which nothing is known but that their number is a product."""
    v, _ = pick(g, lambda of: len(of) > 2)
    add(g, g.spell(SPLIT, v=f"{v.name}.flatten(0, 1)", first=f"{v.name}.size({g.choose('01')})"))


@move(2, MOVES)
def write_in_a_batch(g: Growing) -> None:
    k, _ = pick(g, lambda of: len(of) > 2)
    v = g.new(g.choose((f"{k.name}.clone()", f"{k.name} * 2")), k.rows)
    m = g.pick(kind="map", into="N")
    views.write_statement(g, g.spell(WRITTEN, v=v.name, m=m.name))


def sizes_tried() -> tuple[Mapping[str, int], ...]:
    """The sizes at which a statement of these programs is tried."""
    return _SIZES
