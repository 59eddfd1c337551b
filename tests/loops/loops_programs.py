"""Functions written in loops, each with the fields that it sets. They take the graph and the tensors of `arguments`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from graphweave.loops import (
    concat,
    dot_prd,
    dot_prod,
    exp,
    leakyrelu,
    linear,
    maximum,
    mean,
    minimum,
    outer_prod,
    relu,
    reshape,
    sigmoid,
    sum,
    tanh,
    where,
)

TYPES, WIDTH, OUT = 3, 4, 3


def arguments(rows: tuple[int, int], num_edges: int, seed: int = 5) -> dict[str, Tensor]:
    """W [types, 4, 3], w [types, 3], M [4, 3], heads [types, 2, 2, 3]; x [sources, 4], y [edges]."""
    generator = torch.Generator().manual_seed(seed)

    def leaf(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).requires_grad_()

    return {
        "W": leaf(TYPES, WIDTH, OUT), "w": leaf(TYPES, OUT), "M": leaf(WIDTH, OUT), "heads": leaf(TYPES, 2, 2, 3),
        "x": leaf(rows[0], WIDTH), "y": leaf(num_edges),
    }  # fmt: skip


def listing_1(g: Any, a: Any) -> None:
    """Hector's listing 1 as it is printed, with w_s = w_t = w."""
    W, w_s, w_t = a["W"], a["w"], a["w"]

    def edge_softmax(g: Any) -> None:
        for e in g.edges():
            e["att"] = exp(e["att"])
        for n in g.dst_nodes():
            n["att_sum"] = 0.0
            for e in n.incoming_edges():
                n["att_sum"] += e["att"]
        for e in g.edges():
            e["att"] /= e.dst["att_sum"]

    for e in g.edges():
        hs = e.src.feature * W[e.etype]
        atts = dot_prd(hs, w_s[e.etype])
        ht = e.dst.feature * W[e.etype]
        attt = dot_prd(ht, w_t[e.etype])
        e["att"] = leakyrelu(atts + attt)
    edge_softmax(g)


def messages(g: Any, a: Any) -> None:
    for e in g.edges():
        e["m"] = linear(e.src.feature, a["W"][e.etype], a["w"][e.etype]) * e["x"]
    for n in g.dst_nodes():
        n["h"] = 0.0
        n["deg"] = 0
        for e in n.incoming_edges():
            n["h"] += e["m"] + n["q"] * e.src["q"]
            n["deg"] += 1
        n["h"] = relu(n["h"] + n["q"]) / maximum(n["deg"], 1)


def extremes(g: Any, a: Any) -> None:
    """Largest, smallest, product and difference, from tensors and numbers."""
    for n in g.dst_nodes():
        n["most"] = float("-inf")
        n["least"] = n["q"]
        n["all"] = 1.0
        n["left"] = a["M"][0]
        for e in n.incoming_edges():
            n["most"] = maximum(n["most"], e["x"] * e.src.feature)
            n["least"] = minimum(e["x"], n["least"])
            n["all"] *= 1.0 + 0.5 * tanh(e["x"])
            n["left"] -= 2 * e["x"]


def both_ways(g: Any, a: Any) -> None:
    """Sums at sources, along outgoing edges, and at both ends from a loop over edges."""
    for n in g.src_nodes():
        n["out"] = 0.0
        for e in n.outgoing_edges():
            n["out"] = e["x"] * n.feature + n["out"]
            e["seen"] = n["q"]
    for n in g.dst_nodes():
        n["in"] = 0.5
    for e in g.edges():
        e.dst["in"] += e.src["out"]
    for n in g.src_nodes():
        n["sent"] = 0.0
    for e in g.edges():
        e.src["sent"] += e["seen"] - e["x"]
        e.src["sent"] += 1.0


def inside(g: Any, a: Any) -> None:
    """Two loops over a node's edges, the second with what the first gathered; values of the node in both."""
    for n in g.dst_nodes():
        n["m"] = float("-inf")
        scale = sigmoid(n["q"])
        for e in n.incoming_edges():
            n["m"] = maximum(n["m"], e["x"] * scale)
        n["s"] = 0.0
        for e in n.incoming_edges():
            e["p"] = exp(e["x"] * scale - n["m"])
            n["s"] += e["p"]
        n["h"] = 0.0
        for e in n.incoming_edges():
            e["p"] = e["p"] / n["s"]
            n["h"] += e["p"] * e.src.feature + n["s"]
    for e in g.edges():
        e["back"] = e.dst["h"] - e.src.feature + e.dst["s"]


def features(g: Any, a: Any) -> None:
    """Operations along the features of a row, which know nothing of other rows."""
    for e in g.edges():
        f = e.src.feature
        pair = reshape(f, 2, -1)
        e["reduced"] = sum(f) + mean(f, 0) + f.amax(-1) + pair.sum(1).prod(0) + (f * f).sum().sqrt()
        e["soft"] = torch.softmax(pair, -1) + pair.softmax(0)
        e["joined"] = concat([f, e.src["q"].unsqueeze(-1), a["M"][0]])
        e["outer"] = outer_prod(f[:2], f[1:]) + dot_prod(f, f)
        e["chosen"] = where(f > e["x"], f.clamp(min=-0.5), -f.abs())
        e["products"] = (f @ a["M"]) + torch.matmul(pair, pair.T).flatten()[:3] + torch.einsum("k,km->m", f, a["M"])
        e["turned"] = a["M"].T @ f + pair.transpose(0, 1).reshape(4)[-3:]
        e["heads"] = linear(pair, a["heads"][e.etype]) + linear(f[1:3], a["heads"][e.etype])
        e["typed"] = f * a["W"][e.etype] + 2.0 * a["w"][e.etype] + a["W"][e.etype][0]
        e["scaled"] = 1.0 / (2.0 + e["x"] * e["x"]) - 2**-f + (f >= 0)
        e["operators"] = (f % 2) + f.detach() // 2 + abs(f) ** pair.flatten() + 3 // (f.detach() * f.detach() + 1)
        e["logic"] = ((f > 0) & torch.logical_not(f < f[0]) | (f == f[1])) ^ (f != 2)
        e["shared"] = a["M"][1]
        e["number"] = 2.5


def views(g: Any, a: Any) -> None:
    """Views of the features of a row, conversions, and functions of torch.nn.functional."""
    for e in g.edges():
        f = e.src.feature
        pair = reshape(f, 2, -1)
        e["moved"] = pair.movedim(0, 1).flip(0) + torch.stack(pair.unbind(-1), 1).permute(1, 0)
        e["cut"] = (
            pair.unsqueeze(1).select(0, 1).squeeze(0) + pair.narrow(1, 0, 1).flatten() + torch.cat(f.split(1))[1:3]
        )
        e["swapped"] = pair.swapdims(0, 1) + pair.moveaxis(-1, 0).T
        e["converted"] = functional.relu(f) + functional.dropout(f, 0.0) + (4 * f).long() + f.double()


def tensors(g: Any, a: Any) -> None:
    """Tensors with a row for each node or edge, as arguments."""
    for e in g.edges():
        e["z"] = a["x"][e.src] * a["y"][e]
    for n in g.src_nodes():
        n["z"] = 0.0
        for e in n.outgoing_edges():
            n["z"] += a["x"][n] * a["y"][e] + a["x"][e.src]
        n["z"] = n["z"] - a["x"][n]


def between(g: Any, a: Any) -> None:
    """Fields as tensors between loops; Python around loops; the type of nodes."""
    for n in g.src_nodes():
        n["k"] = n.feature * a["W"][n.ntype]
    g.srcdata["k"] = torch.tanh(g.srcdata["k"])
    for hop in range(2):
        for e in g.edges():
            kind = a["w"][e.src.ntype]
            kind += hop
            if hop == 0:
                e["v"] = e.src["k"] * kind
            else:
                e["v"] += kind
    g.edata["v"] = g.edata["v"] * 2


SETS: dict[Any, tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]] = {
    listing_1: ((), ("att_sum",), ("att",)),
    messages: ((), ("h", "deg"), ("m",)),
    extremes: ((), ("most", "least", "all", "left"), ()),
    both_ways: (("out", "sent"), ("in",), ("seen",)),
    inside: ((), ("m", "s", "h"), ("p", "back")),
    features: ((), (), (
        "reduced", "soft", "joined", "outer", "chosen", "products", "turned", "heads", "typed", "scaled", "operators",
        "logic", "shared", "number",
    )),
    views: ((), (), ("moved", "cut", "swapped", "converted")),
    tensors: (("z",), (), ("z",)),
    between: (("k",), (), ("v",)),
}  # fmt: skip
"""Program -> the fields that it sets: of sources, of destinations, and of edges."""
SQUARE = (listing_1,)
"""Programs that read the same field at both ends."""
