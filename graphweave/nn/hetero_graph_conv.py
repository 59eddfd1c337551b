"""A layer for each relation of a heterogeneous graph, and products and embeddings for each type of nodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from graphweave.core.errors import DataError
from graphweave.graph.graph import Graph
from graphweave.udf import run

_FOLDS: dict[str, Callable[[Tensor], Tensor]] = {
    "sum": lambda x: x.sum(0),
    "mean": lambda x: x.mean(0),
    "max": lambda x: x.amax(0),
    "min": lambda x: x.amin(0),
}


class HeteroGraphConv(nn.Module):
    """h'_t = aggregate over relations r, from type s to type t, of `mods[r](graph[r], (h_s, h_t))`.

    `mods`: relation's name, or canonical relation, -> layer that is called with a graph and a pair of features; other
    relations are left out. `aggregate`: "sum", "mean", "max", "min", "stack" ([N_t, relations, ...]), or a function of
    the list of results and the type. Layers that have `set_allow_zero_in_degree` are told to allow such nodes.

    A type that no relation with features ends in has no result. What nodes without incoming edges get is the layers'
    business. Source: Schlichtkrull et al., "Modeling Relational Data with Graph Convolutional Networks", ESWC 2018.

    >>> graph = gw.heterograph({("a", "r", "b"): ([0, 1], [1, 1]), ("b", "s", "b"): ([0], [1])})
    >>> layer = HeteroGraphConv({"r": GraphConv(5, 4), "s": GraphConv(5, 4)})
    >>> layer(graph, {"a": torch.randn(2, 5), "b": torch.randn(2, 5)})["b"].shape
    torch.Size([2, 4])
    """

    def __init__(
        self, mods: Mapping[object, nn.Module], aggregate: str | Callable[[list[Tensor], str], Tensor] = "sum"
    ) -> None:
        super().__init__()
        self.mod_dict = dict(mods)
        self.mods = nn.ModuleDict({str(name): layer for name, layer in mods.items()})
        for layer in self.mods.values():
            if callable(allow := getattr(layer, "set_allow_zero_in_degree", None)):
                allow(True)
        if isinstance(aggregate, str) and aggregate not in (*_FOLDS, "stack"):
            raise DataError(
                f"aggregate must be a function or one of {', '.join((*_FOLDS, 'stack'))} (got {aggregate!r})."
                " Pass one of these."
            )
        self.aggregate = aggregate

    def forward(
        self,
        g: Graph,
        inputs: Mapping[str, Tensor] | tuple[Mapping[str, Tensor], Mapping[str, Tensor]],
        mod_args: Mapping[str, Sequence[object]] | None = None,
        mod_kwargs: Mapping[str, Mapping[str, object]] | None = None,
    ) -> dict[str, Any]:
        """Type -> features, or a pair of such dicts for sources and destinations -> type -> result.

        Of a block, the first rows of a type's sources are its destinations. `mod_args`, `mod_kwargs`: relation's name
        -> further arguments of its layer.
        """
        src, dst = inputs if isinstance(inputs, tuple) else (inputs, inputs)
        if not isinstance(inputs, tuple) and getattr(g, "is_block", False):
            dst = {t: x[: g.num_dst_nodes(t)] for t, x in inputs.items() if t in g.dsttypes}

        def received(g: Graph, src: Mapping[str, Tensor], dst: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
            found: dict[str, list[Tensor]] = {}
            for key in g.canonical_etypes:
                layer = self._layer(key)
                if layer is None or key[0] not in src or key[2] not in dst:
                    continue
                args, kwargs = (mod_args or {}).get(key[1], ()), (mod_kwargs or {}).get(key[1], {})
                found.setdefault(key[2], []).append(layer(g[key], (src[key[0]], dst[key[2]]), *args, **kwargs))
            return {t: {"h": self._joined(results, t)} for t, results in found.items()}

        return {t: fields["h"] for t, fields in run.on_relations(received, g, src, dst).items()}

    def _layer(self, key: tuple[str, str, str]) -> nn.Module | None:
        names = [name for name in (str(key), key[1]) if name in self.mods]
        return self.mods[names[0]] if names else None

    def _joined(self, results: list[Tensor], ntype: str) -> Tensor:
        if not isinstance(self.aggregate, str):
            return self.aggregate(results, ntype)
        if self.aggregate == "stack":
            return torch.stack(results, dim=1)
        return results[0] if len(results) == 1 else _FOLDS[self.aggregate](torch.stack(results))


class HeteroLinear(nn.Module):
    """h'_t = W_t h_t + b_t for each type t of `in_size`, type -> number of features. `bias`: False leaves b out.

    >>> HeteroLinear({"a": 5}, 4)({"a": torch.randn(3, 5)})["a"].shape
    torch.Size([3, 4])
    """

    def __init__(self, in_size: Mapping[object, int], out_size: int, bias: bool = True) -> None:
        super().__init__()
        self.linears = nn.ModuleDict({str(t): nn.Linear(size, out_size, bias=bias) for t, size in in_size.items()})

    def forward(self, feat: Mapping[object, Tensor]) -> dict[Any, Tensor]:
        """Type -> [N_t, in_t] -> type -> [N_t, out]."""
        return {t: self.linears[str(t)](x) for t, x in feat.items()}


class HeteroEmbedding(nn.Module):
    """A table of features for each type of `num_embeddings`, type -> number of rows.

    >>> HeteroEmbedding({"a": 9}, 4)({"a": torch.tensor([1, 2, 8])})["a"].shape
    torch.Size([3, 4])
    """

    def __init__(self, num_embeddings: Mapping[object, int], embedding_dim: int) -> None:
        super().__init__()
        self.embeds = nn.ModuleDict({str(t): nn.Embedding(rows, embedding_dim) for t, rows in num_embeddings.items()})
        self._types = {str(t): t for t in num_embeddings}

    @property
    def weight(self) -> dict[Any, Tensor]:
        """Type -> its table [rows, F]."""
        return {self._types[name]: table.weight for name, table in self.embeds.items()}  # type: ignore[misc]

    def reset_parameters(self) -> None:
        """Draw the tables from Glorot's uniform distribution."""
        for table in self.embeds.values():
            nn.init.xavier_uniform_(table.weight)  # type: ignore[arg-type]

    def forward(self, input_ids: Mapping[object, Tensor]) -> dict[Any, Tensor]:
        """Type -> rows [N_t] -> type -> [N_t, F]."""
        return {t: self.embeds[str(t)](ids) for t, ids in input_ids.items()}
