"""Typed products, the gradients of their matrices, and their sums by destination, against two ways in PyTorch.

    python -m bench.typed [--repeats 5] [--threads 2] [--case 620k ...] [--out FILE]

Rows are edges in random order, with types of Zipf-distributed sizes, and features gathered from nodes. `copies` is
torch.bmm with a matrix for each row (if the copies fit into 2 GB). `segments` gathers rows in the order of types,
which is computed before, runs one torch.mm for each type, and scatters the rows back. The kernel `scatter` is the sum
by destination of products with one scale an edge: `segments` is the above followed by `index_add`, `two steps` is
graphweave's product followed by `index_add`. GFLOP/s counts 2 k j operations a row, GB/s a row of features read, one
written and two indices. `of mm` compares with the rate of one large torch.mm, `of triad` with that of a = b + 3 c. A
kernel that is near neither bound waits for gathered rows. Times are first quartiles.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from bench.check import relative_error
from bench.common import arguments, interleaved, ratio_table, save, seconds_of
from bench.typed_programs import GRAM, PRODUCT, pushed_program, typed_program
from graphweave.core.options import options_for
from graphweave.ir.message.nodes import Input
from graphweave.tuning.rates import gemm_rate, triad_bandwidth
from tests.program_support import built

TOLERANCE = 1e-4
"""Error relative to the largest result: up to some hundred thousand float32 terms are added in another order."""

_MAX_COPIES_BYTES = 2 << 30
"""`copies` runs if its largest tensor has at most this size."""


@dataclass(frozen=True, slots=True)
class Case:
    rows: int
    types: int
    nodes: int
    blocks: int
    k: int
    j: int


CASES = {
    "620k": Case(620_000, 474, 15_000, 1, 64, 64),
    "50k": Case(50_000, 104, 8_000, 1, 64, 64),
    "4.8M": Case(4_800_000, 51, 1_600_000, 1, 64, 64),
    "dots": Case(620_000, 474, 15_000, 1, 64, 1),
    "heads": Case(620_000, 474, 15_000, 8, 8, 8),
    "singles": Case(4_000, 1345, 4_000, 1, 64, 64),
}


@dataclass(frozen=True, slots=True)
class Work:
    """x [nodes, k], y [rows, j], w [types, k, j]. If there are several blocks, they are dim 1 of each."""

    x: Tensor
    y: Tensor
    w: Tensor
    types: Tensor
    src: Tensor
    order: Tensor
    sizes: list[int]


def make(case: Case) -> Work:
    generator = torch.Generator().manual_seed(1)
    share = 1 / torch.arange(1, case.types + 1, dtype=torch.float64)
    types = torch.multinomial(share, case.rows, replacement=True, generator=generator)
    b = (case.blocks,) if case.blocks > 1 else ()
    x, y = (torch.randn(*s, generator=generator) for s in ((case.nodes, *b, case.k), (case.rows, *b, case.j)))
    w = torch.randn(case.types, *b, case.k, case.j, generator=generator)
    src = torch.randint(case.nodes, (case.rows,), generator=generator)
    order = torch.argsort(types, stable=True)
    return Work(x, y, w, types, src, order, torch.bincount(types, minlength=case.types).tolist())


def kernel_of(case: Case, work: Work, result: str) -> Callable[[], Tensor]:
    """The product, or its gram, as a compiled program."""
    program = typed_program(case.blocks, case.k, case.j, gathers=True, results=(result,))
    made = built(program, options_for("cpp"))
    given = {"x": work.x, "w": work.w, "t": work.types, "y": work.y, "src": work.src}
    args = [given[n.name] for n in made.plan.program.nodes if isinstance(n, Input)]
    return lambda: made([*args])[0]


def product_calls(case: Case, work: Work) -> dict[str, Callable[[], Tensor]]:
    run = kernel_of(case, work, PRODUCT)
    gathered = work.src[work.order]
    shape = case.rows, *work.x.shape[1:-1], case.j

    def segments() -> Tensor:
        out = torch.empty(shape)
        parts = work.x.index_select(0, gathered).split(work.sizes)
        done = [multiply(part, m) for part, m in zip(parts, work.w, strict=True)]
        return out.index_copy_(0, work.order, torch.cat(done))

    def multiply(part: Tensor, m: Tensor) -> Tensor:
        return torch.mm(part, m) if case.blocks == 1 else torch.bmm(part.transpose(0, 1), m).transpose(0, 1)

    def copies() -> Tensor:
        return (work.x[work.src].unsqueeze(-2) @ work.w[work.types]).squeeze(-2)

    calls: dict[str, Callable[[], Tensor]] = {
        "segments": segments,
        "graphweave": run,
    }
    if 4 * case.rows * case.blocks * case.k * case.j <= _MAX_COPIES_BYTES:
        calls["copies"] = copies
    return calls


def gram_calls(case: Case, work: Work) -> dict[str, Callable[[], Tensor]]:
    run = kernel_of(case, work, GRAM)
    gathered = work.src[work.order]

    def segments() -> Tensor:
        first = work.x.index_select(0, gathered).split(work.sizes)
        second = work.y.index_select(0, work.order).split(work.sizes)
        return torch.stack([multiply(a, b) for a, b in zip(first, second, strict=True)])

    def multiply(a: Tensor, b: Tensor) -> Tensor:
        return torch.mm(a.t(), b) if case.blocks == 1 else torch.bmm(a.permute(1, 2, 0), b.transpose(0, 1))

    return {"segments": segments, "graphweave": run}


def scatter_calls(case: Case, work: Work) -> dict[str, Callable[[], Tensor]]:
    generator = torch.Generator().manual_seed(2)
    dst = torch.randint(case.nodes, (case.rows,), generator=generator)
    scale = torch.rand(case.rows, *[1] * (work.x.dim() - 1), generator=generator)
    made = built(pushed_program(case.blocks, case.k, case.j, scaled=True), options_for("cpp"))
    given = {"x": work.x, "w": work.w, "t": work.types, "src": work.src, "dst": dst, "s": scale.flatten()}
    args = [given[n.name] for n in made.plan.program.nodes if isinstance(n, Input)]
    products = product_calls(case, work)

    def summed(messages: Tensor) -> Tensor:
        out = torch.zeros(case.nodes, *messages.shape[1:])
        return out.index_add_(0, dst, messages.mul_(scale))

    return {
        "segments": lambda: summed(products["segments"]()),
        "two steps": lambda: summed(products["graphweave"]()),
        "graphweave": lambda: made([*args])[0],
    }


KINDS = {"product": product_calls, "gram": gram_calls, "scatter": scatter_calls}


def measure(calls: dict[str, Callable[[], Tensor]], repeats: int) -> dict[str, Any]:
    first = {system: seconds_of(call) for system, call in calls.items()}
    error = relative_error(calls["graphweave"](), calls["segments"]())
    if error >= TOLERANCE:
        return {"graphweave": {"status": f"wrong by {error:.1e}"}}
    timings = interleaved(calls, repeats=repeats, warmup=1, first=first)
    return {system: {"status": "ok", **asdict(timing)} for system, timing in timings.items()}


def main(argv: Sequence[str] | None = None) -> int:
    parser = arguments(__doc__)
    parser.add_argument("--case", nargs="+", choices=CASES, default=["620k", "50k", "dots", "heads", "singles"])
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args(argv)
    torch.set_num_threads(options.threads)
    rate, bandwidth = gemm_rate(), triad_bandwidth()
    results: dict[str, Any] = {}
    rows = []
    for name in options.case:
        case = CASES[name]
        work = make(case)
        flops = 2 * case.rows * case.blocks * case.k * case.j
        moved = case.rows * (4 * case.blocks * (case.k + case.j) + 8)
        for kind, calls in KINDS.items():
            found = results[f"{name} {kind}"] = measure(calls(case, work), options.repeats)
            for system, one in found.items():
                if one["status"] != "ok":
                    rows.append([f"{name} {kind} {system}", one["status"]])
                    continue
                seconds = one["q1"]
                numbers = (1e3 * seconds, flops / seconds / 1e9, moved / seconds / 1e9)
                of = (flops / seconds / rate, moved / seconds / bandwidth)
                rows.append([f"{name} {kind} {system}", *(f"{n:.2f}" for n in (*numbers, *of))])
    title = f"{options.threads} threads, mm {rate / 1e9:.0f} GFLOP/s, triad {bandwidth / 1e9:.1f} GB/s"
    ratio_table(title, ["rows, kernel, system", "ms (q1)", "GFLOP/s", "GB/s", "of mm", "of triad"], rows)
    save(options.out, {"benchmark": "typed", "mm_flops": rate, "triad_bytes": bandwidth, "results": results})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
