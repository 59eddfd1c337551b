"""What the compiler says of lines, reasons and programs are records: texts are made of them, and not read again."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from graphweave.compiler.glossary import Glossary
from graphweave.core.errors import IRError, Reason, ShardError
from graphweave.core.lines import NOWHERE, Location, location
from graphweave.core.ranks import LinkName, group_of, link_of
from graphweave.core.types import UNIT, DType, Space
from graphweave.ir.message.fingerprint import program_fingerprint
from graphweave.ir.message.nodes import MapType, Operand, Program, Type
from graphweave.ir.message.parse import parse, read_location

MINE = os.path.join(os.getcwd(), "train.py")
CONV = os.path.join(os.path.dirname(os.path.dirname(torch.__file__)), "torch_geometric", "nn", "gat_conv.py")
INDEXING = os.path.join(os.path.dirname(torch.__file__), "functional.py")

TEXTS = st.lists(st.sampled_from(["a.py", ":", "7", "0", " ", " <- ", "b c.py:12", "<", "\n", "x = 1"]), max_size=8)


@given(TEXTS.map("".join))
def test_a_location_prints_the_text_that_it_was_read_from(text: str) -> None:
    assert str(read_location(text)) == text
    assert bool(read_location(text)) == bool(text)


def test_a_line_of_a_library_has_the_users_own_beside_it() -> None:
    trace = "".join(
        f'  File "{path}", line {line}, in forward\n    {code}\n'
        for path, line, code in (
            (MINE, 8, "h = conv(x)"),
            (CONV, 330, "alpha = softmax(a)"),
            (INDEXING, 5, "out = f()"),
        )
    )
    found = location(trace)
    assert found == Location(CONV, 330, "alpha = softmax(a)", Location(MINE, 8))
    assert read_location(str(found)) == found
    assert (found.own, found.line) == ("train.py:8", "torch_geometric/nn/gat_conv.py:330")
    assert found.shown == "train.py:8 (torch_geometric/nn/gat_conv.py:330)"
    mine = Location(MINE, 8, "h = conv(x)")
    assert (mine.own, mine.shown, str(mine)) == ("train.py:8", "train.py:8", f"{MINE}:8 h = conv(x)")
    assert (Location(CONV, 330).own, Location(CONV, 330).shown) == ("", "torch_geometric/nn/gat_conv.py:330")
    assert location("") is NOWHERE and not NOWHERE and NOWHERE.shown == ""


def test_reasons_have_the_users_words_and_keep_the_compilers() -> None:
    """A name of a space that is also a word of the reason, such as "a", stays where it is a word."""
    a, e = Space("a"), Space("E0")
    glossary = Glossary(spaces={a: "rows of x", e: "edges of edge_index"})
    reason = IRError("a view of ", a, " as ", Operand(3), " by ", MapType(e, a), f" at {7}% of ", UNIT).reason
    words = "a view of rows of x as a value by a map from edges of edge_index to rows of x at 7% of shared data"
    assert glossary.in_words(reason) == words
    assert str(reason).startswith("a view of a as %3 by ")
    assert glossary.in_words(Reason((Type(a, (4,), DType.f32),))) == "f32 [4] on rows of x"


def test_a_part_that_is_gone_is_an_error_that_names_it() -> None:
    with pytest.raises(ShardError, match=r"ranks of 'part_x:_N', whose part is gone"):
        link_of(LinkName("part_x", "_N"))
    with pytest.raises(ShardError, match=r"ranks of 'part_x', whose part is gone"):
        group_of("part_x")


PROGRAM = """
space V = {n}
%0: any "i64[2, {m}]" = input edges
%1: V[4] f32 = input x
%2: any "Sym({m})" = input size
%3: any "none" = call aten._assert_scalar.default(%2, "expected {m} >= 0")
%4: V[4] f32 = call aten.empty.memory_format([{k}, 4], device=@"device({device})")
return %4
"""


def program(n: str = "s0", m: str = "s1", k: int = 5, device: str = "cuda:0") -> Program:
    return parse(PROGRAM.format(n=n, m=m, k=k, device=device))


def test_equal_programs_have_one_fingerprint_wherever_they_were_captured() -> None:
    found = program_fingerprint(program())
    assert found == program_fingerprint(replace(program(device="cuda:3"), locs=(Location("a.py", 1),) * 5))
    assert found == program_fingerprint(program(n="s77", m="u0")), "PyTorch names symbols anew in each trace"
    others = (program(device="cpu"), program(k=6), program(m="s0"), program(m="7"))
    assert len({found, *map(program_fingerprint, others)}) == 5


def test_fingerprints_without_numbers_leave_out_sizes_too() -> None:
    found = program_fingerprint(program(), numbers=False)
    for alike in (program(k=6, device="cuda:1"), program(m="s0"), program(m="7")):
        assert program_fingerprint(alike, numbers=False) == found
    assert program_fingerprint(program(device="cpu"), numbers=False) != found
