"""Message programs of a typed product, of its gram, of both, or of a fused push."""

from __future__ import annotations

from graphweave.core.types import DType
from graphweave.ir.message.nodes import Program
from graphweave.ir.message.parse import parse

PRODUCT, GRAM = "product", "gram"


def typed_program(
    blocks: int, k: int, j: int, dtype: DType = DType.f32, *, gathers: bool = False, transposed: bool = False,
    wraps: bool = False, results: tuple[str, ...] = (PRODUCT, GRAM), swapped: bool = False,
) -> Program:  # fmt: skip
    """A program whose results are x W[t], and sums by type of x' y, or of y' x if `swapped`. 1 block means none.

    Inputs: x [V, k], gathered through `src`, or x [E, k]; w [R, k, j], given as [R, j, k] if `transposed`; the types t
    [E] and src [E]; y [E, j]. Blocks come before k and j. If it `wraps`, indices may be negative.
    """
    b, f, wrap = "" if blocks == 1 else f"{blocks}, ", dtype.value, " wrap" * wraps
    lines = [
        f"{'V' if gathers else 'E'}[{b}{k}] {f} = input x",
        f"R[{b}{j}, {k}] {f} = input w" if transposed else f"R[{b}{k}, {j}] {f} = input w",
        "E[] i64 = input t",
        f"E[{b}{j}] {f} = input y",
        f"E -> R = map %2 to R{wrap}",
    ]
    x, w = "%0", "%1"
    if gathers:
        x = f"%{len(lines) + 2}"
        lines += ["E[] i64 = input src", f"E -> V = map %{len(lines)} to V{wrap}"]
        lines.append(f"E[{b}{k}] {f} = pull %0, %{len(lines) - 1}")
    if transposed:
        w = f"%{len(lines)}"
        lines.append(f"R[{b}{k}, {j}] {f} = permute %1 {'[1, 0]' if blocks == 1 else '[0, 2, 1]'}")
    first = len(lines)
    if PRODUCT in results:
        lines.append(f"E[{b}{j}] {f} = matmul {x}, {w}, %4")
    if GRAM in results:
        shape, ends = (f"{b}{j}, {k}", f"%3, {x}") if swapped else (f"{b}{k}, {j}", f"{x}, %3")
        lines.append(f"R[{shape}] {f} = gram {ends}, %4")
    spaces = ["space E = s0", "space R = s1", *(["space V = s2"] if gathers else [])]
    given_back = ", ".join(f"%{i}" for i in range(first, len(lines)))
    body = [f"%{i}: {line}" for i, line in enumerate(lines)]
    return parse("\n".join([*spaces, *body, f"return {given_back}"]) + "\n")


_COMPUTED = """space V = s0
space R = s1
space E = s2
%0: E[] i64 = input src
%1: E[] i64 = input t
%2: V[{b}{k}] {f} = input x
%3: R[{b}{k}, {j}] {f} = input w
%4: E -> V = map %0 to V
%5: E -> R = map %1 to R
%6: E[{b}{j}] {f} = input y
%7: E[{b}{k}] {f} = pull %2, %4
%8: E[{ones}] {f} = input s
%9: E[{b}{k}] {f} = mul %7, %8
%10: E[{b}{j}] {f} = matmul %9, %3, %5
%11: R[{b}{k}, {j}] {f} = gram %9, %6, %5
return %10, %11
"""


def computed_rows(blocks: int, k: int, j: int, dtype: DType) -> Program:
    """`typed_program` with x[src] times a number s [E, 1] of each row in place of x."""
    b, ones = ("", "1") if blocks == 1 else (f"{blocks}, ", "1, 1")
    return parse(_COMPUTED.format(b=b, k=k, j=j, f=dtype.value, ones=ones))


def pushed_program(
    blocks: int, k: int, j: int, dtype: DType = DType.f32, *, along: str | None = "src", transposed: bool = False,
    scaled: bool = False, wraps: bool = False,
) -> Program:  # fmt: skip
    """A program whose result is the sum along dst of s x W[t] as a fused push.

    Inputs: src, dst and types t [E]; x [V, k], gathered `along` src or dst, or, if that is None, x [E, k] and v [V];
    w [R, k, j], given as [R, j, k] if `transposed`; s [E] if `scaled`. Blocks come before k and j. If it `wraps`,
    indices may be negative.
    """
    b, f, wrap = "" if blocks == 1 else f"{blocks}, ", dtype.value, " wrap" * wraps
    ones = "1" if blocks == 1 else "1, 1"
    lines = [
        *(f"E[] i64 = input {name}" for name in ("src", "dst", "t")),
        *(f"E -> {space} = map %{i} to {space}{wrap}" for i, space in enumerate("VVR")),
        f"{'E' if along is None else 'V'}[{b}{k}] {f} = input x",
        f"R[{b}{j}, {k}] {f} = input w" if transposed else f"R[{b}{k}, {j}] {f} = input w",
    ]
    x, w = "%6", "%7"
    if scaled:
        lines += [f"E[] {f} = input s", f"E[{ones}] {f} = reshape %{len(lines)} [{ones}]"]
        scale = f"%{len(lines) - 1}"
    if along is None:
        lines.append(f"V[] {f} = input v")  # its rows are the rows of the result
    else:
        x = f"%{len(lines)}"
        lines.append(f"E[{b}{k}] {f} = pull %6, %{3 if along == 'src' else 4}")
    if transposed:
        w = f"%{len(lines)}"
        lines.append(f"R[{b}{k}, {j}] {f} = permute %7 {'[1, 0]' if blocks == 1 else '[0, 2, 1]'}")
    lines.append(f"E[{b}{j}] {f} = matmul {x}, {w}, %5")
    if scaled:
        lines.append(f"E[{b}{j}] {f} = mul {scale}, %{len(lines) - 1}")
    lines.append(f"V[{b}{j}] {f} = push.sum %{len(lines) - 1}, %4 fused")
    body = [f"%{i}: {line}" for i, line in enumerate(lines)]
    return parse("\n".join(["space V = s0", "space R = s1", "space E = s2", *body, f"return %{len(lines) - 1}"]) + "\n")
