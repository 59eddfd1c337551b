"""`graphweave.distributed.shard`: a model that each rank runs on its part of a graph, with the numbers of the whole."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar, cast

import torch
import torch.distributed as dist

from graphweave.core.errors import ShardError
from graphweave.core.ranks import register
from graphweave.distributed.part import GraphPart
from graphweave.frontends.dynamo.captured import Captured
from graphweave.frontends.dynamo.compiled_module import CompiledModule
from graphweave.frontends.halves.over_ranks import OverRanks
from graphweave.runtime.rank_link import RankGroup, RankLink, SentRows

T = TypeVar("T", bound=Callable[..., Any])

_serial = itertools.count()


def shard(
    model: T, part: GraphPart, *, group: dist.ProcessGroup | None = None, halo_dtype: torch.dtype | None = None,
    stale: bool = False,
) -> T:  # fmt: skip
    """`model` on this rank's part of a graph: it computes what `model` computes on the whole graph, for own rows.

    Every rank of `group` (the default group if None) calls this with its own part, then calls the result at the same
    times. Arguments are those of `model`, with the rank's own rows: `x` [num_own, F], labels and masks of own nodes,
    `part.edge_index` itself (or `edge_index` of each of `part.edges`), and a row for each of the part's edges in their
    order. A module keeps its parameters; rank 0's initial ones are sent to all others. Results with rows are the rank's
    own rows; shared results, such as a loss inside `model`, are those of the whole graph, on every rank. `backward`
    gives every rank the whole graph's gradients of parameters, so any optimiser keeps the ranks in step. A loss that is
    computed from own rows outside must be divided by counts over all ranks: the sum of the ranks' losses is the loss.

    `halo_dtype`: the float type in which halo rows travel, forward and backward, such as torch.bfloat16, half the bytes
    of float32. `stale`: the forward uses the halo rows of the last step while those of this step travel (Wan et al.,
    "PipeGCN", ICLR 2022); gradients are sent at once.

    Raises ShardError where a result would not be that of the whole graph: at the first call for what the model does
    with rows, and here if `group` has another number of ranks than the part, or the ranks have parts that do not
    belong together.
    """
    size = _ranks_of(group, part)
    name = f"part{next(_serial)}"
    ranks = RankGroup(group, size)
    wrong = _counts_that_differ(ranks.all_gather(_counts(part)))
    if wrong is not None:
        raise ShardError(f"{wrong}, so these are not parts of one graph. Take all parts from one folder.")
    links = {
        kind: RankLink(
            group, size, SentRows(n.send, n.send_counts.tolist(), n.halo_counts.tolist()), halo_dtype
        )
        for kind, n in part.nodes.items()
    }  # fmt: skip
    register(name, ranks, links)
    module = model if isinstance(model, torch.nn.Module) else None
    if module is not None:
        _send_from_first(module, ranks)
    edges = tuple((e.edge_index, src, dst) for (src, _, dst), e in part.edges.items())
    counts = {n.num_own for n in part.nodes.values()} | {e.edge_index.shape[1] for e in part.edges.values()}
    over = OverRanks(name, part.rank, ranks, links, edges, frozenset(counts), module, stale)
    options = {"ranks": over}
    if module is not None:
        return cast(T, CompiledModule(module, True, options))
    call = Captured(model, True, options)

    @functools.wraps(model)
    def sharded(*args: object, **kwargs: object) -> object:
        return call(*args, **kwargs)

    return cast(T, sharded)


def _ranks_of(group: dist.ProcessGroup | None, part: GraphPart) -> int:
    """The number of ranks; ShardError if the process group has another one than the part, or another rank."""
    there = dist.is_available() and dist.is_initialized()
    size, rank = (dist.get_world_size(group), dist.get_rank(group)) if there else (1, 0)
    if (size, rank) != (part.num_parts, part.rank):
        raise ShardError(
            f"part {part.rank} of {part.num_parts} was given to rank {rank} of {size}. Run one process for each part"
            " (torchrun --nproc-per-node), call torch.distributed.init_process_group, and load the part of the rank."
        )
    return size


_Counts: TypeAlias = dict[str, tuple[list[int], list[int]]]
"""The numbers of rows that a part sends to each rank and reads of each, by node type."""


def _counts(part: GraphPart) -> _Counts:
    return {kind: (nodes.send_counts.tolist(), nodes.halo_counts.tolist()) for kind, nodes in part.nodes.items()}


def _counts_that_differ(parts: list[_Counts]) -> str | None:
    """Where a rank would send another number of rows than the other one expects; None if they agree. All ranks say the
    same."""
    for p, q in itertools.product(range(len(parts)), repeat=2):
        if parts[p].keys() != parts[q].keys():
            return f"ranks {p} and {q} have other node types ({', '.join(parts[p])} and {', '.join(parts[q])})"
        for kind in parts[p]:
            sent, read = parts[p][kind][0][q], parts[q][kind][1][p]
            if sent != read:
                return f"rank {p} sends {sent} rows of {kind!r} to rank {q}, which expects {read}"
    return None


def _send_from_first(module: torch.nn.Module, ranks: RankGroup) -> None:
    if ranks.size == 1:
        return
    first = 0 if ranks.group is None else dist.get_global_rank(ranks.group, 0)
    with torch.no_grad():
        for tensor in (*module.parameters(), *module.buffers()):
            dist.broadcast(tensor.detach(), src=first, group=ranks.group)
