"""Teach the compiler an operator and a rule of one's own: a bend that rises, and what follows for its maximum.

    python examples/own_rule.py

The operator is a closed box to PyTorch's compilers. Two declarations open it: its body in C++, and the rule that the
largest of its results is its result for the largest, so that it is computed once a node instead of once an edge.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import graphweave as gw
from graphweave.data import digits
from graphweave.extend.algebra import Builder, Fold, Op, Pointwise, Push


@torch.library.custom_op("example::bend", mutates_args=())
def bend(x: Tensor) -> Tensor:
    """x / (1 + |x|): rises from -1 to 1, and is 0 at 0."""
    return torch.from_numpy(x.numpy() / (1 + abs(x.numpy())))


@torch.library.custom_op("example::bend_backward", mutates_args=())
def bend_backward(gradient: Tensor, x: Tensor) -> Tensor:
    return gradient / (1 + x.abs()) ** 2


bend.register_fake(torch.empty_like)
bend_backward.register_fake(lambda gradient, x: torch.empty_like(x))
bend.register_autograd(
    lambda ctx, gradient: bend_backward(gradient, ctx.saved_tensors[0]),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[0]),
)


def largest_of_bent(build: Builder, ref: int) -> int | None:
    """push.max(bend(x), m) -> bend(push.max(x, m))

    Legal since `bend` rises, and since rows that none points to have 0 on both sides.
    """
    push = build.nodes[ref]
    if not isinstance(push, Push) or push.fold is not Fold.max or push.empty != 0:
        return None
    inner = build.nodes[push.x]
    if not isinstance(inner, Pointwise) or inner.op is not Op("example__bend"):
        return None
    line = build.locs[ref]
    most = build.add(Push(inner.args[0], push.map, Fold.max), line)
    return build.add(Pointwise(inner.op, (most,)), line)


def declare() -> None:
    gw.extend.pointwise("example::bend_backward", "gradient / ((1 + gw_abs(x)) * (1 + gw_abs(x)))")
    gw.extend.pointwise("example::bend", "x / (1 + gw_abs(x))", derivative="example::bend_backward(g, x)")
    gw.extend.rule("largest-of-bent", "push.max(bend(x), m)", "bend(push.max(x, m))", largest_of_bent)


class Network(nn.Module):
    def __init__(self, features: int, hidden: int, classes: int) -> None:
        super().__init__()
        self.first, self.out = nn.Linear(features, hidden), nn.Linear(2 * hidden, classes)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        src, dst = edge_index
        h = self.first(x)
        index = dst.unsqueeze(1).expand(-1, h.shape[1])
        most = torch.zeros_like(h).scatter_reduce(0, index, bend(h[src] - h[dst]), "amax", include_self=False)
        return self.out(torch.cat([h, most], dim=1))


def main() -> None:
    torch.manual_seed(0)
    declare()
    data = digits(k=8)
    model = Network(data.x.shape[1], 16, data.num_classes)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)

    def loss(x: Tensor, edge_index: Tensor, y: Tensor, mask: Tensor) -> Tensor:
        return F.cross_entropy(model(x, edge_index)[mask], y[mask])

    inputs = (data.x, data.edge_index, data.y, data.train_mask)
    checked = gw.compile(loss, options={"verify": True})  # one call next to eager mode: is the rule right?
    torch.testing.assert_close(checked(*inputs), loss(*inputs))
    with torch.no_grad():
        report = str(gw.explain(model, data.x, data.edge_index, detail="costs"))
    print(f"rule tried: {'largest-of-bent' in report}, all in kernels: {'left to PyTorch' not in report}")

    compiled = gw.compile(loss)
    for epoch in range(1, 41):
        optimizer.zero_grad()
        step_loss = compiled(*inputs)
        step_loss.backward()
        optimizer.step()
        if epoch % 10 == 0:
            print(f"epoch {epoch}: loss {step_loss.item():.3f}")

    with torch.no_grad():
        predicted = model(data.x, data.edge_index).argmax(1)
    chance = data.y[data.test_mask].bincount().max() / data.test_mask.sum()
    right = (predicted == data.y)[data.test_mask].float().mean()
    print(f"test accuracy: {right:.3f}, commonest class: {chance:.3f}")


if __name__ == "__main__":
    main()
