"""Moves that rearrange, look at the same memory in another way, and write into it."""

from __future__ import annotations

from tests.fuzz.growing import Growing, Rejected, Value, family, move

SAME_ROWS = family(
    "views",
    {
        "double transpose": "({v}.t() * 2).contiguous().t()",
        "heads": "{v}.view({v}.size(0), 2, -1)",
        "reshape": "{v}.reshape(-1, 2, {v}.size(-1) // 2)",
        "heads swapped": "{v}.view({v}.size(0), -1, 2).transpose(1, 2)",
        "flatten": "{v}.flatten(1)",
        "view of all": "{v}.reshape({v}.size(0), -1)",
        "unsqueeze": "{v}.unsqueeze(1)",
        "expand": "{v}.unsqueeze(1).expand(-1, 2, -1)",
        "expand flatten": "{v}.unsqueeze(2).expand(-1, -1, 2).flatten(1)",
        "columns": "{v}[:, 1:]",
        "column": "{v}[:, 0]",
        "last": "{v}[..., -1]",
        "every second": "{v}[:, ::2]",
        "narrow": "{v}.narrow(1, 0, 2)",
        "chunk": "{v}.chunk(2, dim=-1)[1]",
        "split": "torch.split({v}, 2, dim=1)[0]",
        "halves": "(lambda halves: halves[0] * halves[1])({v}.chunk(2, -1))",
        "unbind": "{v}.unbind(1)[1]",
        "repeat_interleave": "{v}.repeat_interleave(2, dim=1)",
        "repeat": "{v}.repeat(1, 2)",
        "tile": "torch.tile({v}, (1, 2))",
        "unfold": "{v}.unfold(1, 2, 1).sum(-1)",
        "movedim": "torch.movedim({v}.view({v}.size(0), 2, -1), 1, 2).flatten(1)",
        "permute": "{v}.reshape({v}.size(0), 2, -1).permute(0, 2, 1)",
        "heads first": "{v}.view({v}.size(0), 2, -1).transpose(0, 1).contiguous().transpose(0, 1)",
        "contiguous": "{v}.contiguous()",
        "clone": "{v}.clone()",
        "squeeze": "{v}.unsqueeze(-1).squeeze(-1)",
        "view_as": "{v}.reshape(-1).view_as({v})",
        "select": "{v}.select(1, 1)",
        "index columns": "{v}[:, torch.tensor([1, 0])]",
        "index_select columns": "{v}.index_select(-1, torch.tensor([0, 0, 1]))",
        "list of columns": "{v}[:, [1, 0, 1]]",
        "none": "{v}[:, None]",
        "expand_as": "{v}[:, :1].expand_as({v})",
        "broadcast_to": "{v}[:, :1].broadcast_to({v}.shape) * {v}",
        "mT": "{v}.view({v}.size(0), 2, -1).mT",
        "ravel": "{v}.ravel().view({v}.shape)",
    },
)
OTHER_ROWS = family(
    "other rows",
    {
        "from the second": "{v}[1:]",
        "but the last": "{v}[:-1]",
        "every second": "{v}[::2]",
        "first two": "{v}[:2]",
        "transpose": "{v}.t()",
        "transposed slice": "{v}[1:].t()",
        "transposed contiguous": "{v}[1:].t().contiguous()",
        "transpose of three": "{v}.transpose(0, 1)",
        "einsum": "torch.einsum('nd->dn', {v}[1:])",
        "differences": "{v}[1:] - {v}[:-1]",
        "flat": "{v}.reshape(-1)",
        "repeated": "{v}.repeat_interleave(2, dim=0)",
        "expanded": "{v}.unsqueeze(0).expand(2, *{v}.shape)",
        "expanded flat": "{v}.unsqueeze(1).expand(-1, 2, -1).reshape(-1, {v}.size(-1))",
        "one row": "{v}[0]",
        "last row": "{v}[-1:]",
        "pairs": "{v}.unfold(0, 2, 1)",
        "chunk": "{v}.chunk(2)[0]",
        "split": "{v}.split([1, {v}.size(0) - 1])[1]",
        "pad": "F.pad({v}, (0, 0, 1, 0))",
        "cat with itself": "torch.cat([{v}, {v}[:1]])",
        "diagonal": "{v}.diagonal()",
        "sum of rows": "{v}.sum(0)",
        "stack": "torch.stack([{v}, {v} * 2])",
        "view transposed": "{v}[1:].view(-1, 2, {v}.size(-1) // 2).transpose(0, 1).contiguous()",
        "repeat": "{v}.repeat(2, *[1] * ({v}.dim() - 1))",
    },
)
WRITTEN = family(
    "in place",
    {
        "row": "{v}[0] = 0.",
        "rows": "{v}[:1] *= 3",
        "rows from": "{v}[1:] += 1",
        "column": "{v}[:, 0] += 1",
        "column set": "{v}[:, -1] = 2.",
        "columns times": "{v}[:, 1:].mul_(2)",
        "every second": "{v}[::2] = -1.",
        "mul_": "{v}.mul_(2)",
        "add_": "{v}.add_(1)",
        "+=": "{v} += 1",
        "*= itself": "{v} *= {v}.detach()",
        "select mul_": "{v}[0].mul_(2)",
        "select sub_": "{v}[..., 0].sub_(1)",
        "relu_": "{v}.relu_()",
        "clamp_": "{v}.clamp_(-1, 1)",
        "zero_ a slice": "{v}[1:2].zero_()",
        "fill_": "{v}[-1].fill_(0.5)",
        "transposed": "{v}.t()[0].add_(1)",
        "flat": "{v}.view(-1)[0] = 1.",
        "flat slice": "{v}.view(-1)[1:3].mul_(-1)",
        "by a mask of itself": "{v}[{v}.detach() > 0.5] = 0.",
        "masked_fill_": "{v}.masked_fill_({v}.detach() < -0.5, 0.25)",
        "swap": "{v}[0] = {v}[1].clone()",
        "index_fill_": "{v}.index_fill_(0, torch.tensor([0]), 2.)",
        "copy_": "{v}[:1].copy_({v}[1:2])",
        "unsqueezed": "{v}.unsqueeze(0)[0, 0] = 3.",
        "chunk": "{v}.chunk(2, -1)[0].mul_(3)",
    },
)
WRITTEN_WITH = family(
    "in place with another",
    {
        "add_": "{v}.add_({k})",
        "+=": "{v} += {k}",
        "mul_": "{v}.mul_({k})",
        "rows": "{v}[1:] = {k}[1:]",
        "columns": "{v}[:, :1] = {k}[:, :1]",
        "columns added": "{v}[:, 1:] += {k}[:, :-1]",
        "copy_": "{v}[:2].copy_({k}[:2])",
        "addcmul_": "{v}.addcmul_({k}, {k}, value=0.1)",
        "row": "{v}[0] = {k}.sum(0)",
    },
)
WRITTEN_ROWS = family(
    "in place by an index",
    {
        "index_add_": "{v}.index_add_(0, {m}, {k})",
        "scatter_add_": "{v}.scatter_add_(0, {m}.long()[:, None].expand_as({k}), {k})",
        "index_put_": "{v}.index_put_(({m},), {k}, accumulate=True)",
        "scatter_reduce_": "{v}.scatter_reduce_(0, {m}.long()[:, None].expand_as({k}), {k}, 'amax')",
        "set rows": "{v}[{m}] = 0.",
        "set rows of one column": "{v}[{m}, 0] = 1.",
        "index_fill_": "{v}.index_fill_(0, {m}.long(), -1.)",
        "index_reduce_": "{v}.index_reduce_(0, {m}, {k}, 'amin')",
    },
)
WRITTEN_MASK = family(
    "in place by a mask",
    {
        "set": "{v}[{b}] = 0.",
        "add": "{v}[{b}] += 1",
        "of itself": "{v}[{b}] = {v}[{b}] * 2",
        "of another": "{v}[{b}] = {k}[{b}]",
        "masked_fill_": "{v}.masked_fill_({b}.view(-1, *[1] * ({v}.dim() - 1)), 0.)",
        "column": "{v}[{b}, 0] = -1.",
        "nonzero": "{v}[{b}.nonzero().squeeze(1)] -= 1",
    },
)
COPIED = family(
    "copies of views",
    {
        "times": "{v} * 2",
        "contiguous": "{v}.contiguous()",
        "contiguous times": "{v}.contiguous() * 2",
        "clone": "{v}.clone()",
        "plus": "{v} + 1",
        "reshape": "{v}.reshape(-1, {v}.size(-1)).clone()",
        "flatten": "{v}.flatten(-2).clone()",
        "preserved": "{v}.clone(memory_format=torch.contiguous_format)",
        "empty_like": "torch.empty_like({v}).copy_({v})",
        "zeros_like": "torch.zeros_like({v}) + {v}",
        "to": "{v}.to(torch.float64, copy=True)",
        "cat": "torch.cat([{v}], 0)",
        "stride": "{v} * {v}.stride(0) * ({v}.is_contiguous() + 1) / 8",
        "new_empty_strided": "{v}.new_empty_strided({v}.shape, {v}.stride()).copy_({v})",
        "as_strided": "{v}.contiguous().as_strided(({v}.size(0), {v}[0].numel()), ({v}[0].numel(), 1))",
    },
)
STATE = family(
    "state",
    {
        "add_": "buf.add_({v}.detach())",
        "copy_": "buf.copy_({v}.detach() * 2)",
        "index_add_": "buf.index_add_(0, {m}, {k}.detach())",
        "set rows": "buf[{m}] = 0.5",
        "slice": "buf[1:] *= 0.5",
        "momentum": "buf.mul_(0.9).add_({v}.detach(), alpha=0.1)",
    },
)


@move(8)
def view(g: Growing) -> None:
    v = g.pick(fits=g.dims(1, 2, 3))
    g.new(g.spell(SAME_ROWS, v=v.name), v.rows)


@move(6)
def other_rows(g: Growing) -> None:
    v = g.pick(fits=g.dims(1, 2, 3))
    made = g.new(g.spell(OTHER_ROWS, v=v.name), f"rows of v{g.names}")
    if g.rng.random() < 0.6:
        g.new(g.choose((f"{made.name} * 2", f"{made.name}.contiguous() + 1", f"{made.name}.clone()")), made.rows)


def _written(g: Growing) -> Value:
    """A value that may be written into: made by the function, and often a copy, whose strides PyTorch chooses."""
    v = g.pick(fits=lambda v: len(g.shape(v)) > 0)
    if v.name in g.environments[0] and v.name.startswith("v") and g.rng.random() < 0.5:
        return v
    return g.new(g.choose((f"{v.name}.clone()", f"{v.name} * 2", f"{v.name}.contiguous() + 1")), v.rows)


def write_statement(g: Growing, text: str) -> None:
    """Writes the statement, if eager mode can still differentiate the result."""
    before = len(g.statements)
    g.run(text)
    try:
        for env in g.environments:
            reals = [env[v.name] for v in g.values if v.kind == "real" and v.name.startswith("v")]
            if any(r.isnan().any() or r.detach().abs().max() > 1e4 for r in reals if r.numel()):
                raise Rejected
            total = sum(r.sum() for r in reals if r.requires_grad)
            if not isinstance(total, int):
                total.backward()
    except (RuntimeError, IndexError) as error:
        g.take_back(before)
        raise Rejected from error
    except Rejected:
        g.take_back(before)
        raise
    g.restart()


@move(7)
def write(g: Growing) -> None:
    v = _written(g)
    write_statement(g, g.spell(WRITTEN, v=v.name))


@move(6)
def write_view(g: Growing) -> None:
    """A view, a copy of it, whose strides PyTorch chooses, and a write into a part of the copy."""
    v = g.pick(fits=g.dims(2, 3))
    name, rows = g.choose(((SAME_ROWS, v.rows), (OTHER_ROWS, f"rows of v{g.names}")))
    made = g.new(g.spell(name, v=v.name), rows)
    copied = g.new(g.spell(COPIED, v=made.name), "")
    write_statement(g, g.spell(WRITTEN, v=copied.name))


@move(4)
def write_with(g: Growing) -> None:
    v = _written(g)
    k = g.pick(v.rows, fits=lambda k: k != v)
    write_statement(g, g.spell(WRITTEN_WITH, v=v.name, k=k.name))


@move(4)
def write_rows(g: Growing) -> None:
    m = g.pick(kind="map")
    k = g.pick(m.rows)
    v = g.new(f"{g.pick(m.into).name} * 1.5", m.into)
    write_statement(g, g.spell(WRITTEN_ROWS, v=v.name, k=k.name, m=m.name))


@move(4)
def write_mask(g: Growing) -> None:
    b = g.pick(kind="mask")
    k = g.pick(b.rows)
    v = g.new(g.choose((f"{k.name}.clone()", f"{k.name} + 1")), b.rows)
    write_statement(g, g.spell(WRITTEN_MASK, v=v.name, k=k.name, b=b.name))


@move(1)
def state(g: Growing) -> None:
    m = g.pick("E", "map", "N")
    text = g.spell(STATE, v=g.pick("N", fits=g.dims(2)).name, k=g.pick("E", fits=g.dims(2)).name, m=m.name)
    write_statement(g, text)
    g.new("buf * 2", "N")
