"""The options of `graphweave.compile`, one field each: its default, the values it may have, and what turning it off
does. Every stage reads them here, under these names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import Field, dataclass, field, fields
from typing import Any, Literal, get_args

from graphweave.core.byte_sizes import parse_bytes
from graphweave.core.errors import SettingsError
from graphweave.core.kernel_schedules import KernelSchedules
from graphweave.core.locality import RowOrder
from graphweave.core.schedule import Schedule

Recompute = Literal["auto", "never", "sums", "always"]
Saved = Literal["exact", "bfloat16", "auto"]
"""Values that a backward computes again: those that cost O(1) an edge, none, or everything that is no product or
call."""


@dataclass(frozen=True, slots=True)
class Option:
    """An option as documents and errors tell it. `check` says what a value must be, or nothing if it may be so.

    A row of the table in docs/switches.md says that the value `off` turns off the idea `turned_off`, and what `stays`.
    """

    check: Callable[[str, Any], str]
    off: str = ""
    turned_off: str = ""
    stays: str = ""


def _one_of(*allowed: object) -> Callable[[str, object], str]:
    def check(name: str, value: object) -> str:
        if any(value is one or (isinstance(one, str) and value == one) for one in allowed):
            return ""
        *most, last = map(repr, allowed)
        return f"option {name!r} must be {', '.join(most)} or {last} (got {value!r}). Pass one of these."

    return check


def _is_schedule(name: str, value: object) -> str:
    if value is None or isinstance(value, Schedule | KernelSchedules) or value == "tune":
        return ""
    if isinstance(value, Mapping) and value:
        given = [one for one in value.values() if one != "tune"]
        named, known = all(isinstance(key, str) for key in value), all(isinstance(one, Schedule) for one in given)
        if named and known and len(given) >= len(value) - 1:
            return ""
        return (
            f"option {name!r} must give a graphweave.Schedule, or 'tune' once, for a line ('model.py:12'), a half"
            f" ('forward') or a kernel ('forward_0') (got {value!r}). Pass these."
        )
    return (
        f"option {name!r} must be 'tune', a graphweave.Schedule, a dict of them, or None (got {value!r})."
        " Pass one of these."
    )


def _is_budget(name: str, value: object) -> str:
    if not isinstance(value, bool) and isinstance(value, int | float) and value > 0:
        return ""
    return f"{name} must be a number of seconds above 0 (got {value!r}). Pass one, such as 60."


def _is_memory(name: str, value: object) -> str:
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and value > 0):
        return ""
    if isinstance(value, str):
        try:
            if parse_bytes(name, value) > 0:
                return ""
        except SettingsError:
            pass
    return (
        f"option {name!r} must be a number of bytes above 0, a text such as '2G' or '512M', or None (got {value!r})."
        " Pass one of these."
    )


def _is_list_of_passes(name: str, value: object) -> str:
    if isinstance(value, str) and all(word.strip().startswith("-") for word in value.split(",") if word.strip()):
        return ""
    return (
        f"option {name!r} must list what is left out, each name behind a minus (got {value!r}). Write it so:"
        " '-narrow-gathers,-postpone'."
    )


_SWITCH = _one_of(True, False)
_DECISION = _one_of(None, True, False)


def _option(check: Callable[[str, object], str], *told: str) -> dict[str, Option]:
    return {"option": Option(check, *told)}


@dataclass(frozen=True, slots=True)
class Choices:
    """A user's decisions about a compilation; every field is an option of `graphweave.compile`.

    `verify`: at every call, also run the captured graph and the interpreter of every region, and raise VerifyError
    where they differ (`frontends/halves/reference.py`, `execute/region_check.py`). `recompute`: what the backward
    computes again instead of keeping it (`passes/recompute.py`). `saved`: the type of wide rows of float32 that wait
    for the backward, "auto" for bfloat16 where `memory` needs it (`passes/narrow_saved.py`). `chunks`: run chains of
    row-wise work for chunks of rows, whose wide rows the backward computes again (`lower/row_chains.py`). `compact`:
    whether to compute what depends on source and relation alone once for each pair (True), for each edge (False), or as
    the cost model says (None). `reorder`: whether to multiply weights by weights before rows, with the same three
    values.
    `cuda_graphs`: replay calls on a CUDA device as CUDA graphs (`execute/cuda_graph.py`); this does nothing on the CPU.
    `unseen_edits`: look at each call for edits of index tensors that PyTorch does not see (`runtime/unseen_edits.py`).
    `schedule`: choices for kernels that replace the compiler's, for all of them or by name, or "tune", which measures
    and takes the best of what is left to the compiler (`tuning/`), for at most `budget` seconds a graph. `memory`:
    bytes, or a text such as "2G", into which a step must fit besides its arguments
    (`frontends/dynamo/memory_budget.py`). `relabel`: an order in which nodes are computed and stored between the
    arguments and the results (`passes/relabel.py`); "auto" measures on the graph of the first call, and on each graph
    that is not like it, whether one pays (`tuning/order.py`). `forms`: whether graphs of other statistics may take
    another form of the program (`frontends/halves/forms.py`). `rewrite`, `fuse` and `merge` turn an idea off, to
    measure what it gains, and `passes` leaves out passes and rules by name (`compiler/road.py`).
    """

    # fmt: off
    verify: bool = field(default=False, metadata=_option(_SWITCH))
    recompute: Recompute = field(default="auto", metadata=_option(
        _one_of(*get_args(Recompute)), '`"never"`',
        "computing values of edges again in the backward: what the backward needs is kept from the forward, as eager"
        " mode does ([design](design/partition.md))",
    ))
    saved: Saved = field(default="exact", metadata=_option(_one_of(*get_args(Saved))))
    compact: bool | None = field(default=None, metadata=_option(
        _DECISION, "`False`", "one result for each pair of source and relation where edges share both",
    ))
    reorder: bool | None = field(default=None, metadata=_option(
        _DECISION, "`False`", "products of weights before products of rows",
    ))
    cuda_graphs: bool = field(default=False, metadata=_option(_SWITCH))
    unseen_edits: bool = field(default=True, metadata=_option(_SWITCH))
    rewrite: bool = field(default=True, metadata=_option(
        _SWITCH, "`False`",
        "every change of the program that the cost model decides: work moved from edges to nodes, products of weights"
        " taken first, factors moved out of sums, one result for each pair of source and relation"
        " ([design](design/rewriting.md))",
        "changes that are always made (constants, equal values computed once), and what `compact` and `reorder`"
        " ask for",
    ))
    fuse: bool = field(default=True, metadata=_option(
        _SWITCH, "`False`",
        "several operations in one kernel: each operation on nodes or edges is a kernel or a call of PyTorch, and its"
        " result is stored, on edges too ([design](design/scheduling.md))",
        "a product and the push that folds it, where rewriting has made them one operation",
    ))
    merge: bool = field(default=True, metadata=_option(
        _SWITCH, "`False`",
        "one operation in place of many of one kind, such as those of the relations of a heterogeneous layer",
        "each relation's own kernels",
    ))
    chunks: bool = field(default=False, metadata=_option(_SWITCH))
    relabel: RowOrder | Literal[False, "auto"] = field(default=False, metadata=_option(
        _one_of(False, *get_args(RowOrder), "auto"), "`False`, the default",
        'nothing: what `"degree"`, `"locality"` and `"auto"` turn on is off',
    ))
    forms: bool = field(default=True, metadata=_option(
        _SWITCH, "`False`",
        "other forms of the program for graphs of other sizes and statistics, in one compiled function"
        " ([design](design/choices.md))",
        "the form that suits the graph of the first call, and a compilation from scratch where sizes would reverse a"
        " choice",
    ))
    schedule: Schedule | KernelSchedules | Literal["tune"] | None = field(default=None, metadata=_option(
        _is_schedule, '`gw.Schedule(...)`, or `"tune"` to [measure](tuning.md)',
        "the compiler's choice of the way in which kernels walk edges and features ([schedules](schedules.md))",
        "fields that are not given",
    ))
    passes: str = field(default="", metadata=_option(
        _is_list_of_passes, '`"-narrow-gathers,-postpone"`', "the [passes and rules](#passes) that it names",
        "all others",
    ))
    memory: int | str | None = field(default=None, metadata=_option(_is_memory))
    budget: float = field(default=60.0, metadata=_option(_is_budget))
    # fmt: on

    @property
    def tunes(self) -> bool:
        """Whether a schedule is to be found by measuring."""
        by_name = self.schedule.sought if isinstance(self.schedule, KernelSchedules) else None
        return self.schedule == "tune" or by_name is not None

    @property
    def memory_bytes(self) -> int | None:
        """`memory` as a number."""
        return parse_bytes("memory", self.memory) if isinstance(self.memory, str) else self.memory

    @property
    def left_out(self) -> frozenset[str]:
        """The names of the passes and rules that `passes` leaves out."""
        return frozenset(word.strip().removeprefix("-") for word in self.passes.split(",") if word.strip())


def option_of(described: Field[object]) -> Option:
    """The option that a field of `Choices` is."""
    found: Option = described.metadata["option"]
    return found


OPTIONS: dict[str, Option] = {f.name: option_of(f) for f in fields(Choices)}
"""Every option of `graphweave.compile` by its name."""


def choices_of(options: Mapping[str, Any] | None) -> Choices:
    """The options as an object. Raises SettingsError for an unknown option and for a value that an option cannot
    have."""
    given = dict(options or {})
    for name, value in given.items():
        if name not in OPTIONS:
            known = ", ".join(OPTIONS)
            raise SettingsError(f"unknown option {name!r} of graphweave.compile; there are {known}. Name one of these.")
        check_option(name, value)
    if given.get("memory") is not None and given.get("schedule") == "tune":
        raise SettingsError(
            "options 'memory' and 'schedule' = 'tune' both choose a form of the program (got both). Leave one out."
        )
    if given.get("verify") and given.get("saved", "exact") != "exact":
        raise SettingsError(
            "option 'verify' compares gradients with those of eager mode, and option 'saved' rounds what they are made"
            " of (got both). Leave one out."
        )
    if isinstance(by_name := given.get("schedule"), Mapping):
        given["schedule"] = KernelSchedules.of(by_name)
    return Choices(**given)


def check_option(name: str, value: object) -> None:
    """SettingsError if the option cannot have this value."""
    if wrong := OPTIONS[name].check(name, value):
        raise SettingsError(wrong)
