"""A knowledge graph: triples of head, relation and tail, in three splits."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from graphweave.core.errors import DataError


@dataclass(frozen=True, slots=True, eq=False)
class KnowledgeGraph:
    """A link-prediction problem. Its fields are checked when it is made: it raises DataError if they do not fit
    together.

    `train`, `valid` and `test` are [T, 3] int64: rows of head, relation, tail, of `num_nodes` entities and `num_rels`
    relations. The inverse of relation r has the number r + num_rels. The triples hold no inverses; `both_ways` adds
    them. `name` is for messages.
    """

    train: Tensor
    valid: Tensor
    test: Tensor
    num_nodes: int
    num_rels: int
    name: str

    def __post_init__(self) -> None:
        for part, triples in self.parts():
            _check_triples(f"{self.name}: {part}", triples, self.num_nodes, self.num_rels)

    def parts(self) -> tuple[tuple[str, Tensor], ...]:
        return (("train", self.train), ("valid", self.valid), ("test", self.test))

    def both_ways(self, triples: Tensor) -> Tensor:
        """[2T, 3]: the triples, then each one as (tail, inverse relation, head), so that heads are predicted as
        tails."""
        head, rel, tail = triples.unbind(1)
        return torch.cat([triples, torch.stack([tail, rel + self.num_rels, head], 1)])

    def everything(self) -> Tensor:
        """The triples of all splits in both directions, which a filtered ranking counts as true."""
        return self.both_ways(torch.cat([self.train, self.valid, self.test]))


def _check_triples(name: str, triples: Tensor, num_nodes: int, num_rels: int) -> None:
    if triples.dim() != 2 or triples.size(1) != 3 or triples.dtype != torch.int64:
        raise DataError(
            f"{name} must be int64 of shape [triples, 3] (got {triples.dtype}, {list(triples.shape)})."
            " Convert the triples."
        )
    for column, part, word, count in ((0, "head", "node", num_nodes), (1, "rel", "relation", num_rels),
                                      (2, "tail", "node", num_nodes)):  # fmt: skip
        values = triples[:, column]
        bad = (values < 0) | (values >= count)
        if bool(bad.any()):
            row = int(bad.nonzero()[0])
            raise DataError(
                f"{name}: {word} {int(values[row])} of triple {row} ({part}) is out of range: there are {count} "
                f"{word}s."
                " Correct the triples."
            )
