"""Tape IR: what happens in one call of a half of a program, step by step.

A tape is made from a plan (`execute/tape_of.py`), and a runner follows it. Its values are those of the plan's program
and have the names that they have there, `%3`. Its kernels have the positions of their regions in the plan, and its
maps are nodes of the program, too. Nothing in a tape is a tensor or a function, so a tape is text, and any runner that
has the kernels can follow it.

Whether a step reads or makes a value is told by the annotation of the field that names it: `Ref` or `Given` for
what is read, `Made` for what is made.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from graphweave.core.ranks import LinkName
from graphweave.core.sizes import Size
from graphweave.core.types import Space
from graphweave.ir.message.layouts import Promise
from graphweave.ir.message.types import Ref
from graphweave.ir.tape.limits import StepLimit
from graphweave.ir.tape.types import TAPE, Begun, Freed, Given, Made, Mapped

step, number, part = TAPE.union("Step"), TAPE.union("Number"), TAPE.union("part of a step")

# ---------------------------------------------------------------- before all others


@step("watch {value}")
@dataclass(frozen=True, slots=True)
class LookForEdits:
    """Looks for edits of a tensor that PyTorch does not see (`runtime/unseen_edits.py`)."""

    value: Ref


@step("""\
once makes [{makes}] reads [{reads}] rows [{rows}]| looks [{looks}]|| watched [{watched}]|| ranks {ranks}| {shared} {
  {tape}
}""")
@dataclass(frozen=True, slots=True)
class OnceAGraph:
    """Follows another tape, of the plan's prelude, once for each graph. `makes` are the first of its results, `reads`
    the values of its inputs, and `rows` the row counts that it asks for.

    `looks` are the positions of inputs that are tensors, in which it looks for edits that PyTorch does not see.
    `watched` are the positions of results that users get, and may edit in such a way. With `ranks`, a group, all
    ranks of it follow the tape if one of them has to. With `shared`, results are kept where all programs find them,
    from the first call on.
    """

    makes: tuple[Made, ...]
    reads: tuple[Ref, ...]
    rows: tuple[Space, ...]
    tape: Tape
    looks: tuple[int, ...] = ()
    watched: tuple[int, ...] = ()
    ranks: str | None = None
    shared: bool = False


# ---------------------------------------------------------------- row counts


@number("{rows}")
@dataclass(frozen=True, slots=True)
class Fixed:
    rows: int


@number("{value} dim {dim}")
@dataclass(frozen=True, slots=True)
class DimOf:
    """The size of a dim of a tensor."""

    value: Ref
    dim: int


@number("{value}")
@dataclass(frozen=True, slots=True)
class NumberOf:
    """A value that is a number."""

    value: Ref


@number("rows of {value}")
@dataclass(frozen=True, slots=True)
class DistinctOf:
    """The number of rows in a value of distinct rows."""

    value: Ref


@part("{size} = {number}")
@dataclass(frozen=True, slots=True)
class Known:
    """A part of a size, and the number that it is in this call."""

    size: Size
    number: Number


@number("size {size} with [{known}]")
@dataclass(frozen=True, slots=True)
class Computed:
    """A size, computed from those parts of it that are known."""

    size: Size
    known: tuple[Known, ...]


Number: TypeAlias = Fixed | DimOf | NumberOf | DistinctOf | Computed


@step("count {space} = {number}")
@dataclass(frozen=True, slots=True)
class Count:
    """Counts the rows of a space. Later steps take the counts of the spaces in their field `rows`."""

    space: Space
    number: Number


# ---------------------------------------------------------------- work


@step("{value} = call [{rows}]({operands}) {counted}")
@dataclass(frozen=True, slots=True)
class CallNode:
    """Computes one node of the program without a kernel of ours. Calls that do work which kernels could have done are
    `counted`."""

    value: Made
    rows: tuple[Space, ...]
    operands: tuple[Given, ...]
    counted: bool = False


@step("narrow {value}")
@dataclass(frozen=True, slots=True)
class Narrow:
    """Holds an index in 32 bits from here on, if it fits."""

    value: Ref


@step("kernel {kernel} rows [{rows}] indices [{indices}] reads [{reads}] writes [{writes}]")
@dataclass(frozen=True, slots=True)
class RunKernel:
    """Runs one kernel. `indices` are the index tensors of its maps."""

    kernel: int
    rows: tuple[Space, ...]
    indices: tuple[Ref, ...]
    reads: tuple[Ref, ...]
    writes: tuple[Made, ...]


@part("run {kernel} reads [{reads}] writes [{writes}]| limited {limit}|")
@dataclass(frozen=True, slots=True)
class Member:
    """A kernel of several that run in one native call."""

    kernel: int
    reads: tuple[Ref, ...]
    writes: tuple[Made, ...]
    limit: StepLimit | None = None


@part("transpose {value} of {source}")
@dataclass(frozen=True, slots=True)
class Transpose:
    """A matrix that the native call transposes before its first kernel."""

    value: Made
    source: Ref


@part("inside {value}: {nbytes} bytes of {space} in {slot}")
@dataclass(frozen=True, slots=True)
class Inside:
    """A value that only kernels of the same native call read. It is no tensor, and lies in a slot of the call's memory,
    which values may share if their lives do not overlap. `nbytes` are those of one row."""

    value: Made
    space: Space
    nbytes: int
    slot: int


@part("room {value} for {link}")
@dataclass(frozen=True, slots=True)
class Room:
    """A value whose rows are sent to other ranks. Its tensor has memory for the halo rows of the link, too."""

    value: Ref
    link: LinkName


@step("""\
kernels rows [{rows}] maps [{maps}] indices [{indices}] reads [{reads}] writes [{writes}]| frees [{frees}]| {
  {transposes}
  {members}
  {inside}
  {rooms}
}""")
@dataclass(frozen=True, slots=True)
class RunKernels:
    """Runs several kernels, one after the other, in one native call. `indices` are the index tensors of `maps`.

    Each of the values in `frees` is among `reads`. The call may free it after the last member that reads it.
    """

    rows: tuple[Space, ...]
    maps: tuple[Mapped, ...]
    indices: tuple[Ref, ...]
    reads: tuple[Ref, ...]
    writes: tuple[Made, ...]
    members: tuple[Member, ...]
    transposes: tuple[Transpose, ...] = ()
    inside: tuple[Inside, ...] = ()
    rooms: tuple[Room, ...] = ()
    frees: tuple[Freed, ...] = ()


@step("check {kernel} rows [{rows}] given [{given}] writes [{writes}]")
@dataclass(frozen=True, slots=True)
class Check:
    """Compares what a kernel has written with what the interpreter computes from the same values."""

    kernel: int
    rows: tuple[Space, ...]
    given: tuple[Ref, ...]
    writes: tuple[Ref, ...]


@step("""\
chunks of {space} each {nbytes} bytes reads [{reads}] sliced [{sliced}] rows [{rows}] makes [{makes}] adds [{adds}] {
  {tape}
}""")
@dataclass(frozen=True, slots=True)
class InChunks:
    """Follows another tape for some rows of a space after the others. `reads` are the values of its inputs, and `rows`
    the row counts that it asks for. It gets the chunk's rows of those in `sliced`, and the others whole.

    Its results are the chunk's rows of each value that this step `makes`, then the chunk's part of each value of shared
    data that it `adds` up. The values that exist for one chunk alone have `nbytes` in a row.
    """

    space: Space
    nbytes: int
    reads: tuple[Ref, ...]
    sliced: tuple[Ref, ...]
    rows: tuple[Space, ...]
    makes: tuple[Made, ...]
    adds: tuple[Made, ...]
    tape: Tape


# ---------------------------------------------------------------- between ranks


@step("begin {value} from {source} {in_place}")
@dataclass(frozen=True, slots=True)
class Begin:
    """Begins to move rows of `source` between ranks, as node `value` says, and keeps that alive until it is waited for.
    With `in_place`, rows come to the memory behind the source's own rows if there is room."""

    value: Begun
    source: Ref
    in_place: bool = False


@step("wait for {value}")
@dataclass(frozen=True, slots=True)
class Wait:
    """Waits until the rows of a value that has begun to move are there."""

    value: Made


@part("late {value} along {map} to {space} from {link}")
@dataclass(frozen=True, slots=True)
class Late:
    """A value whose halo rows may still be on their way. The kernel reads it along `map`, which leads to `space`."""

    value: Ref
    map: Mapped
    space: Space
    link: LinkName


@step("""\
first part of {kernel} rows [{rows}] indices [{indices}] reads [{reads}] writes [{writes}]| back {back}| {
  {late}
  {rooms}
}""")
@dataclass(frozen=True, slots=True)
class FirstPart:
    """Computes those rows of a kernel that read no halo row of a `late` value; or with `back`, a link, the halo rows,
    which go back to their owners. Only exchanges read what it writes before `SecondPart`."""

    kernel: int
    rows: tuple[Space, ...]
    indices: tuple[Ref, ...]
    reads: tuple[Ref, ...]
    writes: tuple[Made, ...]
    late: tuple[Late, ...] = ()
    rooms: tuple[Room, ...] = ()
    back: LinkName | None = None


@step("second part of {kernel}")
@dataclass(frozen=True, slots=True)
class SecondPart:
    """Computes the other rows of the kernel."""

    kernel: int


# ---------------------------------------------------------------- memory and results


@step("{value} = own {source} {promise}")
@dataclass(frozen=True, slots=True)
class OwnMemory:
    """The same tensor as the source, or a copy if that is needed to keep the promise (`ir/message/layouts.py`)."""

    value: Made
    source: Ref
    promise: Promise


@step("taken [{values}]")
@dataclass(frozen=True, slots=True)
class Taken:
    """Results with memory of their own must not share that of these values, as they share that of no argument."""

    values: tuple[Ref, ...]


@step("saved [{values}]")
@dataclass(frozen=True, slots=True)
class Saved:
    """Fresh results must not share the memory of these values, which are kept for the backward."""

    values: tuple[Ref, ...]


@step("settle {result} = {value} {promise}")
@dataclass(frozen=True, slots=True)
class Settle:
    """Makes a result of a value: the same tensor, or a copy if that is needed to keep the promise."""

    result: int
    value: Ref
    promise: Promise


@step("free [{values}]")
@dataclass(frozen=True, slots=True)
class Free:
    values: tuple[Freed, ...]


@part("{value} {lent}")
@dataclass(frozen=True, slots=True)
class Output:
    """A result. One that the runner keeps for the next call on the same graph is `lent`: the user gets an alias."""

    value: Given
    lent: bool = False


Step: TypeAlias = (
    LookForEdits | OnceAGraph | Count | CallNode | Narrow | RunKernel | RunKernels | Check | InChunks | Begin | Wait
    | FirstPart | SecondPart | OwnMemory | Taken | Saved | Settle | Free
)  # fmt: skip


@part("""\
tape {name}({inputs})| rows [{rows}]|| constants [{constants}]| {
  {steps}
  return [{outputs}]
}""")
@dataclass(frozen=True, slots=True)
class Tape:
    """Steps in order. The caller gives the values `inputs`, and then the row counts `rows`. `constants` are values
    that are there before the first call. Every other value is made by a step before it is read, and freed by one after
    its last use, unless it is an output."""

    name: str
    inputs: tuple[Ref, ...]
    steps: tuple[Step, ...]
    outputs: tuple[Output, ...]
    rows: tuple[Space, ...] = ()
    constants: tuple[Ref, ...] = ()
