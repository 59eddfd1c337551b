"""A knowledge graph that needs no file: families, whose relations follow from two of them."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from graphweave.core.errors import DataError
from graphweave.data.knowledge_graph import KnowledgeGraph

FAMILY_RELATIONS = ("parent_of", "married_to", "sibling_of", "grandparent_of", "aunt_or_uncle_of", "cousin_of")
"""Relations of `families` by number. The first two are facts, the others follow."""

_FACTS = 2
_GENERATIONS = 4


def families(count: int = 40, seed: int = 0) -> KnowledgeGraph:
    """`count` families of four generations, about 35 people each, drawn from `seed`, and who is what to whom.

    A couple has 2 to 4 children, each of whom, but for the last generation, marries someone from outside and has 1 to
    3. With p the relation of parents: sibling = p^-1 p without oneself, grandparent = p p, aunt or uncle = sibling p
    without parents (by blood alone), cousin = p^-1 sibling p without siblings. Facts are in `train`; of each family's
    other triples 80 of 100 are in `train`, 10 in `valid`, 10 in `test`, all families together shuffled.
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
    facts, rest = triples[triples[:, 1] < _FACTS], triples[triples[:, 1] >= _FACTS]
    rest = rest[torch.from_numpy(rng.permutation(len(rest)))]
    first, second = round(0.8 * len(rest)), round(0.9 * len(rest))
    train = torch.cat([facts, rest[:first]])
    return KnowledgeGraph(train, rest[first:second], rest[second:], nodes, len(FAMILY_RELATIONS), "families")


def _family(rng: np.random.Generator) -> tuple[int, list[tuple[int, int]], list[tuple[int, int]]]:
    """How many people, who is whose parent, and who is married, both ways."""
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
    """Triples [T, 3] of one family, by products of its 0/1 matrices [head, tail]."""
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
