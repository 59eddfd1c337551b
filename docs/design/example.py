"""The worked example of the design book, one layer of graph attention, and every text that the compiler makes of it."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor, fx

import graphweave as gw
from graphweave.codegen import triton
from graphweave.compiler.plan import Plan, PlanName, make_plan
from graphweave.core.options import options_for
from graphweave.execute import build
from graphweave.execute.dump import dump_plan
from graphweave.frontends.dynamo import captured_request
from graphweave.frontends.importing.importer import import_graph
from graphweave.ir.loop.show import show as show_kernel
from graphweave.ir.message.show import show as show_program
from graphweave.lower.schedule import Region

ROOT = Path(__file__).parent.parent.parent


def gat(x: Tensor, src: Tensor, dst: Tensor, weight: Tensor, attention: Tensor) -> Tensor:
    loops = torch.arange(len(x))
    src, dst = torch.cat([src, loops]), torch.cat([dst, loops])
    z = x @ weight
    pairs = torch.cat([z[src], z[dst]], dim=1)
    score = F.leaky_relu(pairs @ attention, 0.2).squeeze(1)
    nodes = score.new_zeros(len(x))
    top = nodes.scatter_reduce(0, dst, score.detach(), "amax", include_self=False)
    e = torch.exp(score - top[dst])
    total = nodes.index_add(0, dst, e)
    a = e / total[dst]
    return torch.zeros_like(z).index_add(0, dst, a[:, None] * z[src])


def two_relations(
    x: Tensor, first: tuple[Tensor, Tensor], second: tuple[Tensor, Tensor],
    w1: Tensor, a1: Tensor, w2: Tensor, a2: Tensor,
) -> Tensor:  # fmt: skip
    return gat(x, *first, w1, a1) + gat(x, *second, w2, a2)


def texts() -> dict[str, str]:
    """Each stage's text by name: `layer`, `aten`, `imported`, ...; kernels by half and number, `forward.0.loop`."""
    nodes, edges = 1000, 8000
    x, weight, attention = torch.zeros(nodes, 32), torch.zeros(32, 16), torch.zeros(32, 1)
    src, dst = torch.zeros(edges, dtype=torch.int64), torch.arange(edges) % nodes
    captured: list[str] = []
    plans: list[tuple[Plan, str]] = []

    def importing(module: fx.GraphModule, *args: object) -> object:
        captured.append(module.code)
        return import_graph(module, *args)  # type: ignore[arg-type]

    def dumping(plan: Plan, wrapper: str, tape: str) -> None:
        plans.append((plan, tape))
        dump_plan(plan, wrapper, tape)

    with mock.patch.object(captured_request, "import_graph", importing), mock.patch.object(build, "dump_plan", dumping):
        told = gw.explain(gat, x, src, dst, weight.requires_grad_(), attention.requires_grad_())
    found = {
        "layer": inspect.getsource(gat),
        "aten": re.sub(r";  \w+(?: = \w+)* = None|torch\.ops\.", "", captured[0]),
        "summary": told.text(),
        "costs": told.text("costs").partition("== ")[2],
        "imported": told.rewrites[0].before,
        "rewritten": told.rewrites[0].after,
    }
    for (plan, tape), graph in zip(plans, told.graphs, strict=True):
        half = plan.name.half
        found |= {f"{half}.wrapper": graph.wrapper, f"{half}.tape": tape}
        found |= _plan_texts(half, plan)
        if plan.prelude is not None:
            found |= _plan_texts(f"{half}.prelude", plan.prelude)
    weights = [t.detach().clone() for t in (weight, attention, weight, attention)]
    merged = gw.explain(two_relations, x, (src, dst), (dst.clone(), src.clone()), *weights)
    found |= {"merged": merged.rewrites[0].after, "relations": inspect.getsource(two_relations)}
    again = make_plan(PlanName("forward"), plans[0][0].facts, options_for("triton"), {})
    found["forward.triton"] = next(triton.print_kernel(k.lowered.kernel) for k in again.kernels.values())
    return {name: _tidy(name, text) for name, text in found.items()}


def _plan_texts(name: str, plan: Plan) -> dict[str, str]:
    found = {name: show_program(plan.program), f"{name}.regions": _regions(plan)}
    for i, kernel in enumerate(plan.kernels.values()):
        found[f"{name}.{i}.loop"] = show_kernel(kernel.lowered.kernel)
        found[f"{name}.{i}.cpp"] = kernel.text
    return found


def _regions(plan: Plan) -> str:
    lines = []
    for step in plan.schedule.steps:
        if isinstance(step, Region):
            along = "" if step.map is None else f", edges along %{step.map}"
            members = " ".join(f"%{r}" for r in step.members)
            lines.append(f"region: rows of {step.rows.name}{along}\n  members {members}")
            lines.append(f"  outputs {' '.join(f'%{r}' for r in step.outputs)}")
        else:
            lines.append(f"call: %{step.ref} = {type(plan.program.nodes[step.ref]).__name__.lower()}")
    return "\n".join(lines)


def _tidy(name: str, text: str) -> str:
    """Without what differs from run to run; programs without the lines of source behind each node."""
    text = re.sub(r"\bgraph\d+_", "graph0_", text.replace(f"{ROOT}/docs/design/", "").replace("docs/design/", ""))
    lines = [line.partition("  # ")[0] if line.startswith("%") else line.rstrip() for line in text.splitlines()]
    return "\n".join(line for line in lines if line or name in ("layer", "summary"))
