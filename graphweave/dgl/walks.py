"""Random walks with DGL's arguments: along one relation, along a metapath, and with node2vec's preferences."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from graphweave import sampling
from graphweave.core.errors import DataError
from graphweave.dgl.graph import DGLGraph
from graphweave.graph.relation import Etype


def random_walk(
    g: DGLGraph, nodes: object, *, metapath: Sequence[Etype] | None = None, length: int | None = None,
    prob: str | None = None, restart_prob: float | None = None, return_eids: bool = False,
) -> tuple[Tensor, ...]:  # fmt: skip
    """(traces [starts, steps + 1], types [steps + 1]), int64: the nodes of a walk along outgoing edges from each of
    `nodes`, -1 after its end, and the node type of each column. With `return_eids`, (traces, edges [starts, steps],
    types).

    `metapath`: the relation of each step; without it, `length` steps along the only relation. `prob`: a field of edges
    to which chances are proportional. `restart_prob`: the chance that a walk ends after a step; a number.

    DataError if both or neither of `metapath` and `length` are given, and for a tensor as `restart_prob`.
    """
    if (metapath is None) == (length is None):
        raise DataError("expected metapath or length (got both or neither). Pass one of them.")
    if isinstance(restart_prob, Tensor) and restart_prob.numel() > 1:
        raise DataError("restart_prob must be a number (got a number for each step). Pass one number.")
    keys = [g.to_canonical_etype(e) for e in ([None] if metapath is None else metapath)]
    steps = len(keys) if length is None else length
    walker = sampling.RandomWalker(
        g, metapath=keys, prob=prob, restart=float(restart_prob or 0.0), seed=int(torch.randint(2**31, ()))
    )
    traces, edges = walker.walk(torch.as_tensor(nodes).long().view(-1), steps)
    kinds = [keys[0][0], *(keys[i % len(keys)][2] for i in range(steps))]
    types = torch.tensor([g.get_ntype_id(kind) for kind in kinds])
    return (traces, edges, types) if return_eids else (traces, types)


def node2vec_random_walk(
    g: DGLGraph, nodes: object, p: float, q: float, walk_length: int, prob: str | None = None, return_eids: bool = False
) -> Tensor | tuple[Tensor, Tensor]:
    """Walks of `walk_length` steps [starts, walk_length + 1], -1 after their end; with `return_eids` also their edges.

    At v, come from t, an edge v -> w is drawn with a chance proportional to its field `prob` (1 without) times 1 / p
    if w = t, 1 if t -> w is an edge, else 1 / q (Grover and Leskovec, "node2vec", 2016, section 3.2.2). Drawn by
    rejection. DataError for p or q that is not positive.
    """
    if p <= 0 or q <= 0:
        raise DataError(f"node2vec: p and q must be positive (got {p!r} and {q!r}). Pass 1 for no preference.")
    walker = sampling.RandomWalker(g, prob=prob, seed=int(torch.randint(2**31, ())))
    src, dst = (ends.long() for ends in g.all_edges())
    joined = (src * g.num_nodes() + dst).unique()
    most = max(1 / p, 1.0, 1 / q)
    here = torch.as_tensor(nodes).long().view(-1)
    traces, edges = here.new_full((len(here), walk_length + 1), -1), here.new_full((len(here), walk_length), -1)
    traces[:, 0] = here
    walks, epoch = torch.arange(len(here)), 0
    for step in range(walk_length):
        left, gone = walks, []
        while left.numel():
            went, by = walker.walk(traces[left, step], 1, epoch)
            epoch += 1
            to, alive = went[:, 1], went[:, 1] >= 0
            if step:
                back = traces[left, step - 1]
                near = torch.isin(back * g.num_nodes() + to, joined)
                weight = torch.where(near, 1.0, 1 / q).where(to != back, torch.tensor(1 / p))
                taken = torch.rand(left.numel()) * most < weight
            else:
                taken = torch.ones_like(alive)
            settled = taken & alive
            traces[left[settled], step + 1], edges[left[settled], step] = to[settled], by[settled, 0]
            gone.append(left[settled])
            left = left[~taken & alive]
        walks = torch.cat(gone) if gone else walks
    return (traces, edges) if return_eids else traces


def pack_traces(traces: Tensor, types: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(nodes, types, lengths, offsets) of walks [starts, steps + 1] and the types of their columns: the nodes of all
    walks one after the other without the -1 of their ends, the type of each, and where each walk lies in them."""
    there = traces >= 0
    lengths = there.sum(1)
    return traces[there], types.expand_as(traces)[there], lengths, lengths.cumsum(0) - lengths
