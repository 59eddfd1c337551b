"""A generated knowledge graph of families, in which two relations are facts and the others follow from them."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from graphweave.core.errors import DataError
from graphweave.data.knowledge_graph import KnowledgeGraph

FAMILY_RELATIONS = ("parent_of", "married_to", "sibling_of", "grandparent_of", "aunt_or_uncle_of", "cousin_of")
"""Relations of `families` by number. The first two are facts, the others follow."""

_NUM_FACTS = 2
"""The first relations of `FAMILY_RELATIONS`, this many of them, are facts."""

_GENERATIONS = 4
"""Number of generations of a family."""


def families(count: int = 40, seed: int = 0) -> KnowledgeGraph:
    """`count` families of four generations, about 35 people each, drawn from `seed`, with the relations of people.

    The first couple has 2 to 4 children. Each child marries someone from outside and has 1 to 3 children, except in the
    last generation. With p for parent_of: sibling = p^-1 p without oneself, grandparent = p p, aunt or uncle =
    sibling p without parents (by blood alone), cousin = p^-1 sibling p without siblings. All facts are in `train`. The
    other triples of all families are shuffled together: 80% are in `train`, 10% in `valid` and 10% in `test`.
    """
    if count < 1:
        raise DataError(f"families: expected one family at least (got {count}). Pass a positive number.")
    rng = np.random.default_rng(seed)
    parts: list[Tensor] = []
    nodes = 0
    for _ in range(count):
        people, parent, married = _family(rng)
        triples = _related(people, parent, married)
        parts.append(triples + torch.tensor([nodes, 0, nodes]))
        nodes += people
    triples = torch.cat(parts)
    facts, rest = triples[triples[:, 1] < _NUM_FACTS], triples[triples[:, 1] >= _NUM_FACTS]
    rest = rest[torch.from_numpy(rng.permutation(len(rest)))]
    first, second = round(0.8 * len(rest)), round(0.9 * len(rest))
    train = torch.cat([facts, rest[:first]])
    return KnowledgeGraph(train, rest[first:second], rest[second:], nodes, len(FAMILY_RELATIONS), "families")


def _family(rng: np.random.Generator) -> tuple[int, list[tuple[int, int]], list[tuple[int, int]]]:
    """The number of people, pairs (parent, child), and married pairs in both orders."""
    people, parent, couples = 2, [], [(0, 1)]
    married = [(0, 1), (1, 0)]
    for generation in range(1, _GENERATIONS):
        fewest = 2 if generation == 1 else 1
        following = []
        for couple in couples:
            for _ in range(rng.integers(fewest, fewest + 3)):
                child, people = people, people + 1
                parent += [(one, child) for one in couple]
                if generation < _GENERATIONS - 1:
                    spouse, people = people, people + 1
                    married += [(child, spouse), (spouse, child)]
                    following.append((child, spouse))
        couples = following
    return people, parent, married


def _related(people: int, parent: list[tuple[int, int]], married: list[tuple[int, int]]) -> Tensor:
    """All triples [T, 3] of one family, from products of its 0/1 matrices [head, tail]."""
    p = torch.zeros(people, people)
    p[tuple(torch.tensor(parent).t())] = 1
    m = torch.zeros(people, people)
    m[tuple(torch.tensor(married).t())] = 1
    own = torch.eye(people)
    sibling = ((p.t() @ p - own * 2) > 0).float()
    grand = p @ p
    aunt = sibling @ p - p
    cousin = p.t() @ sibling @ p - sibling - own
    parts = []
    for number, matrix in enumerate((p, m, sibling, grand, aunt, cousin)):
        head, tail = (matrix > 0).nonzero(as_tuple=True)
        parts.append(torch.stack([head, torch.full_like(head, number), tail], 1))
    return torch.cat(parts)
