"""Facts about the ranks that a compilation is for, on which the ranks agree before each compiles.

All ranks must run the same program, since each exchange is one that all take part in. So they compare what they have
captured, and choices by cost are made from the same numbers of rows, the mean over the ranks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch._dynamo.source import TensorPropertySource
from torch._guards import TracingContext
from torch._subclasses.fake_tensor import unset_fake_temporarily

from graphweave.analysis.facts import Facts
from graphweave.analysis.ownership import Sharding
from graphweave.analysis.statistics import Statistics, statistics_of
from graphweave.core.errors import ShardError
from graphweave.core.log import logger
from graphweave.core.sizes import Symbol, leaves
from graphweave.core.types import UNIT, Space
from graphweave.ir.message import nodes as ir
from graphweave.ir.message.builder import operands
from graphweave.ir.message.fingerprint import program_fingerprint
from graphweave.passes.pass_facts import Measure
from graphweave.runtime.rank_link import RankGroup, RankLink

_log = logger(__name__)

EdgeTensor = tuple[Tensor, str, str]
"""An `edge_index` of a part, with the node types of sources and destinations."""


@dataclass(frozen=True, eq=False)
class OverRanks:
    """The ranks that a function runs on. `links` has the link of each node type, `counts` are the
    numbers of own rows and of edges of each type, and `model` is the module whose parameters and buffers all ranks
    have."""

    name: str
    rank: int
    group: RankGroup
    links: Mapping[str, RankLink]
    edges: tuple[EdgeTensor, ...]
    counts: frozenset[int]
    model: torch.nn.Module | None = None
    stale: bool = False
    _stand_ins: list[EdgeTensor] = field(default_factory=list)
    _rows: list[tuple[Tensor, int]] = field(default_factory=list)
    _halo: dict[str, int] = field(default_factory=dict)

    def agreed(
        self, program: ir.Program, values: Mapping[str, Any], rows: Mapping[Space, int]
    ) -> tuple[Sharding, Statistics]:
        """How `program` lies on the ranks, and mean row counts. `values` are the inputs of this call by name.

        Every rank must call this at the same time. Raises ShardError if the ranks have captured different programs or
        no argument is an index of the part's edges.
        """
        names, given = list(values), list(values.values())
        shared = frozenset(n for n, v in values.items() if isinstance(v, Tensor) and self.is_shared(v))
        own_edges = {names[i]: ends for i, ends in self.edges_among(given).items()}
        own: dict[str, Any] = {
            "program": program_fingerprint(program),
            "but for numbers": program_fingerprint(program, numbers=False),
            "compiled in": self._rows_compiled_in(program, values, shared | own_edges.keys()),
            "edges": own_edges,
            "too few": self._too_few(program, values),
            "rows": {s.name: n for s, n in rows.items()},
            "halo": {name: link.rows.num_halo for name, link in self.links.items()},
        }  # fmt: skip
        with unset_fake_temporarily():
            said = self.group.all_gather(own)
        self._refuse_differences(own, said)
        edges = {name: ends for other in said for name, ends in other["edges"].items()}
        if not edges:
            raise ShardError(
                f"expected an index of the part's edges among the arguments (got {len(names)}). Pass part.edge_index,"
                " or edge_index of each of part.edges, itself and not a copy."
            )
        self._check_sizes(program)
        halo = {name: link.rows.num_halo for name, link in self.links.items()}
        self._halo.update({name: -(-sum(o["halo"][name] for o in said) // len(said)) for name in halo})
        sharding = Sharding(
            self.name, self.rank, tuple((name, *ends) for name, ends in sorted(edges.items())),
            tuple(sorted(halo.items())), tuple(sorted(self._halo.items())), shared, self.stale,
        )  # fmt: skip
        means: dict[Space, int] = {}
        for space in rows:
            counts = [other["rows"].get(space.name, 0) for other in said]
            means[space] = -(-sum(counts) // len(counts))
        return sharding, statistics_of(means)

    def _refuse_differences(self, own: Mapping[str, Any], said: Sequence[Mapping[str, Any]]) -> None:
        """ShardError if the ranks, of which this one has said `own`, cannot run one program."""
        fixed = [other["compiled in"] for other in said]
        differ = any(other["program"] != own["program"] for other in said)
        alike = all(other["but for numbers"] == own["but for numbers"] for other in said)
        if all(fixed) or (differ and (alike or any(fixed))):
            which = ", ".join(fixed[self.rank]) or "those of some tensor"
            raise ShardError(
                f"the model cannot run over parts: numbers of rows were compiled in ({which}), which differ from rank"
                " to rank. Do not compile them in: no mark_static, nothing whose width is a number of rows. Pass what"
                " all ranks have as parameters."
            )
        if few := next((other["too few"] for other in said if other["too few"]), ""):
            raise ShardError(
                f"the model cannot run over parts: what was captured needs more rows than each rank has ({few}). Take"
                " fewer parts, or do not ask for sizes or strides where rows are few."
            )
        for rank, other in enumerate(said):
            if other["program"] != own["program"]:
                raise ShardError(
                    f"ranks {self.rank} and {rank} captured different programs (fingerprints {own['program'][:8]} and "
                    f"{other['program'][:8]}). Call the model on every rank, with arguments of the same kinds."
                )

    def _rows_compiled_in(
        self, program: ir.Program, values: Mapping[str, object], besides: frozenset[str]
    ) -> list[str]:
        """Arguments with a row for each of this rank's nodes or edges whose number is no symbol in `program`."""
        fixed = [
            n.name for n in program.nodes if isinstance(n, ir.Input) and _is_fixed(n.type) and n.name not in besides
        ]
        given = {name: values.get(name) for name in fixed}
        return [
            f"{list(value.shape)} of {name}" for name, value in given.items()
            if isinstance(value, Tensor) and value.dim() and value.shape[0] in self.counts
        ]  # fmt: skip

    def _too_few(self, program: ir.Program, values: Mapping[str, Tensor | int]) -> str:
        """In words, an argument with fewer rows on this rank than `program` holds for; its stand-in has enough.

        The call after the dry one would compile again, on this rank alone, which others do not expect.
        """
        env = _shape_env()
        bounds = {} if env is None else {str(symbol): known.lower for symbol, known in env.var_to_range.items()}
        sizes = dict(program.spaces)
        for node in program.nodes:
            value = values.get(node.name) if isinstance(node, ir.Input) else None
            if not isinstance(node, ir.Input) or not isinstance(value, Tensor):
                continue
            rows = next((n for stand_in, n in self._rows if _same(stand_in, value)), None)
            if rows is None:
                continue
            t = node.type
            dims = t.dims or () if isinstance(t, ir.AnyType) else ()
            size = sizes.get(t.space) if isinstance(t, ir.Type) else dims[int(is_pair(value))] if dims else 0
            bound = bounds.get(size.name, 0) if isinstance(size, Symbol) else 0
            if bool(rows < bound):  # a number of SymPy's, or minus infinity
                return f"{bound} of {node.name}, of which rank {self.rank} has {rows}"
        return self._too_few_unread(program, values, bounds)

    def _too_few_unread(self, program: ir.Program, values: Mapping[str, object], bounds: Mapping[str, Any]) -> str:
        """Like `_too_few`, for arguments of which `program` reads nothing but the number of rows. Which number is whose
        is not known, so that all of them must have enough."""
        read = [value for value in values.values() if isinstance(value, Tensor)]
        rows = [n for stand_in, n in self._rows if not any(_same(stand_in, value) for value in read)]
        for node in program.nodes:
            size = node.type.size if isinstance(node, ir.Input) and isinstance(node.type, ir.AnyType) else None
            bound = bounds.get(size.name, 0) if isinstance(size, Symbol) else 0
            if few := [n for n in rows if bool(n < bound)]:
                return f"{bound} of a tensor of which only the size is read, of which rank {self.rank} has {few[0]}"
        return ""

    def _check_sizes(self, program: ir.Program) -> None:
        """ShardError if `program` computes with the size of a tensor that it has not, so that nobody knows whether
        ranks have the same."""
        env = _shape_env()
        if env is None:
            return
        sources = {str(symbol): found for symbol, found in env.var_to_sources.items()}
        known = {s for _, size in program.spaces for s in leaves(size)}
        known |= {s for t in program.types if isinstance(t, ir.AnyType) for size in t.dims or () for s in leaves(size)}
        read = {r for node in program.nodes for r in operands(node)}
        for ref, t in enumerate(program.types):
            size = t.size if isinstance(t, ir.AnyType) and ref in read else None
            if not isinstance(program.nodes[ref], ir.Input) or not isinstance(size, Symbol) or size in known:
                continue
            of_tensor = [s for s in sources.get(size.name, ()) if isinstance(s, TensorPropertySource)]
            if of_tensor:
                where = next((program.locs[r] for r, n in enumerate(program.nodes) if ref in operands(n)), "")
                raise ShardError(
                    f"the model cannot run over parts: it computes with {of_tensor[0].name}, but reads nothing else of"
                    f" that tensor ({where}). Take the size of a tensor that it reads, or pass the number of the whole"
                    " graph."
                )

    def mean_of(self, measure: Measure) -> Measure:
        """`measure`, its mean over the ranks. Every rank must call it for the same values, in the same order."""

        def mean(facts: Facts, ref: ir.Ref) -> int | None:
            own = measure(facts, ref)
            with unset_fake_temporarily():
                known = [n for n in self.group.all_gather(own) if n is not None]
            return -(-sum(known) // len(known)) if known else None

        return mean

    @contextmanager
    def alone(self, edges: list[EdgeTensor], rows: list[tuple[Tensor, int]]) -> Iterator[None]:
        """Within the block, calls send nothing and take what others would send as zeros. `edges` stand for the
        part's, and `rows` has each stand-in with the number of rows of what it stands for."""
        groups = (self.group, *self.links.values())
        self._stand_ins.extend(edges)
        self._rows.extend(rows)
        for group in groups:
            group.dry = True
        try:
            yield
        finally:
            self._stand_ins.clear()
            self._rows.clear()
            for group in groups:
                group.dry = False

    def edges_among(self, values: Sequence[object]) -> dict[int, tuple[str, str]]:
        """The positions of indices of the part's edges among `values`, each with the types of its ends.

        An index without edges cannot be told from another one by its memory, so those are taken in their order.
        """
        known = self._stand_ins or self.edges
        found: dict[int, tuple[str, str]] = {}
        empty = [ends for index, *ends in known if not index.numel()]
        for i, value in enumerate(values):
            if not isinstance(value, Tensor):
                continue
            for index, src, dst in known:
                if index.numel() and _same(value, index):
                    found[i] = (src, dst)
            if empty and not value.numel() and value.shape == (2, 0) and not value.is_floating_point():
                src, dst = empty.pop(0)
                found[i] = (src, dst)
        return found

    def is_shared(self, value: Tensor) -> bool:
        """Whether all ranks have this tensor: a parameter or a buffer."""
        held = [] if self.model is None else [*self.model.parameters(), *self.model.buffers()]
        storages = {t.untyped_storage().data_ptr() for t in held if t.numel()}
        return isinstance(value, torch.nn.Parameter) or (
            bool(value.numel()) and value.untyped_storage().data_ptr() in storages
        )


def is_pair(x: Tensor) -> bool:
    """Whether `x` may be an edge_index, whose second dimension counts edges."""
    return x.dim() == 2 and x.shape[0] == 2 and not x.is_floating_point()


def _same(a: Tensor, b: Tensor) -> bool:
    """Whether `a` is `b`, or the same memory seen in the same way."""
    if a is b:
        return True
    return a.data_ptr() == b.data_ptr() and a.shape == b.shape and a.stride() == b.stride()


def _shape_env() -> Any:
    """PyTorch's record of the sizes in the graph that it is tracing."""
    context = TracingContext.try_get()
    return None if context is None or context.fake_mode is None else context.fake_mode.shape_env


def _is_fixed(t: object) -> bool:
    """Whether the first dimension of a tensor was compiled in."""
    if isinstance(t, ir.Type):
        return t.space == UNIT and bool(t.shape)
    return isinstance(t, ir.AnyType) and isinstance((t.dims or (None,))[0], int)
