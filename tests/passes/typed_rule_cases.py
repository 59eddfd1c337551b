"""Small programs with typed products to which a rule applies."""

from __future__ import annotations

HEAD = """
space V = s0
space R = s1
space E = s2
%0: E[] i64 = input src
%1: E[] i64 = input etype
%2: E -> V = map %0 to V
%3: E -> R = map %1 to R wrap
%4: V[4] f64 = input x
%5: R[4, 3] f64 = input w
%6: R[3] f64 = input a
%7: R[9, 8] f64 = input m
%8: E[4] f64 = pull %4, %2
%9: E[3] f64 = matmul %8, %5, %3
%10: E[3] f64 = pull %6, %3
%11: E[9, 8] f64 = pull %7, %3
%12: unit[] f64 = input u
%13: E[9] f64 = input e
%14: E[] i64 = input dst
%15: E -> V = map %14 to V
"""
"""%8: rows pulled from sources, %9: their typed product, %10: a vector and %11: a matrix for the type of each edge."""

APPLIES = {
    "typed-linear": [
        ("rows first", """
%16: E[9, 1] f64 = reshape %13 [9, 1]
%17: E[9, 8] f64 = mul %16, %11
%18: E[8] f64 = reduce.sum %17 [0]"""),
        ("matrix first, with a sign and numbers", """
%16: E[8] f64 = input y
%17: E[1] f64 = input s
%18: E[8] f64 = div %16, %17
%19: E[9, 8] f64 = mul %11, %18
%20: E[9, 8] f64 = neg %19
%21: E[9, 8] f64 = mul %20, %12
%22: E[9, 1] f64 = reduce.sum %21 [1] keepdim"""),
        ("transposed on edges", """
%16: E[8, 9] f64 = permute %11 [1, 0]
%17: E[8, 9] f64 = mul %16, %13
%18: E[8] f64 = reduce.sum %17 [1]"""),
        ("blocks", """
%16: R[2, 9, 8] f64 = input blocks
%17: E[2, 9, 8] f64 = pull %16, %3
%18: E[2, 9] f64 = input y
%19: E[2, 9, 1] f64 = reshape %18 [2, 9, 1]
%20: E[2, 9, 8] f64 = mul %17, %19
%21: E[2, 8] f64 = reduce.sum %20 [1]"""),
        ("blocks that share the row", """
%16: R[2, 9, 8] f64 = input blocks
%17: E[2, 9, 8] f64 = pull %16, %3
%18: E[9, 1] f64 = reshape %13 [9, 1]
%19: E[2, 9, 8] f64 = mul %17, %18
%20: E[2, 1, 8] f64 = reduce.sum %19 [1] keepdim"""),
        ("blocks that are transposed", """
%16: R[2, 9, 8] f64 = input blocks
%17: E[2, 9, 8] f64 = pull %16, %3
%18: E[2, 8, 9] f64 = permute %17 [0, 2, 1]
%19: E[2, 8, 9] f64 = mul %18, %13
%20: E[2, 8] f64 = reduce.sum %19 [2]"""),
        ("matrices laid out as rows", """
%16: R[72] f64 = input flat
%17: E[72] f64 = pull %16, %3
%18: E[9, 8] f64 = reshape %17 [9, 8]
%19: E[9, 1] f64 = reshape %13 [9, 1]
%20: E[9, 8] f64 = mul %18, %19
%21: E[8] f64 = reduce.sum %20 [0]"""),
        ("rows that all types share", """
%16: unit[9, 1] f64 = input y
%17: E[9, 8] f64 = mul %11, %16
%18: E[8] f64 = reduce.sum %17 [0]"""),
        ("rows of ones", "%16: E[8] f64 = reduce.sum %11 [0]"),
        ("the gradient of matrices", """
%16: E[8] f64 = input y
%17: E[9, 1] f64 = reshape %13 [9, 1]
%18: E[9, 8] f64 = mul %17, %16
%19: E[9, 8] f64 = mul %18, %12
%20: E[9, 8] f64 = neg %19
%21: R[9, 8] f64 = push.sum %20, %3"""),
        ("the gradient of transposed matrices", """
%16: E[8] f64 = input y
%17: E[9, 1] f64 = reshape %13 [9, 1]
%18: E[9, 8] f64 = mul %17, %16
%19: E[8, 9] f64 = permute %18 [1, 0]
%20: E[8, 9, 1] f64 = reshape %19 [8, 9, 1]
%21: R[8, 9, 1] f64 = push.sum %20, %3"""),
        ("the gradient of matrices laid out as rows", """
%16: E[8] f64 = input y
%17: E[9, 1] f64 = reshape %13 [9, 1]
%18: E[9, 8] f64 = mul %17, %16
%19: E[72] f64 = reshape %18 [72]
%20: R[72] f64 = push.sum %19, %3"""),
        ("the gradient of blocks", """
%16: E[2, 1, 8] f64 = input y
%17: E[1, 9, 1] f64 = reshape %13 [1, 9, 1]
%18: E[2, 9, 8] f64 = mul %17, %16
%19: R[2, 9, 8] f64 = push.sum %18, %3"""),
    ],
    "scale-out-of-gathered": [
        ("times a number", """
%16: E[1] f64 = input s
%17: E[4] f64 = mul %16, %8
%18: E[3] f64 = matmul %17, %5, %3"""),
        ("by a number, with a sign", """
%16: E[] f64 = input s
%17: E[4] f64 = div %8, %16
%18: E[4] f64 = neg %17
%19: E[3] f64 = matmul %18, %5, %3"""),
        ("shared numbers, blocks", """
%16: E[2, 2] f64 = reshape %8 [2, 2]
%17: E[2, 2] f64 = mul %16, %12
%18: R[2, 2, 3] f64 = input blocks
%19: E[2, 3] f64 = matmul %17, %18, %3"""),
        ("a sign alone", """
%16: E[4] f64 = neg %8
%17: E[3] f64 = matmul %16, %5, %3"""),
    ],
    "column-counts": [
        ("how many edges have this destination and kind", """
%16: unit[3] i64 = input arange_0_3
%17: E[] i64 = input kind
%18: E[1] i64 = reshape %17 [1]
%19: E[3] bool = eq %16, %18
%20: unit[] f64 = const 0.0
%21: E[3] f64 = const 1.0
%22: E[3] f64 = where %19, %21, %20
%23: V[3] f64 = push.sum %22, %15
%24: E[3] f64 = pull %23, %15
%25: E[3] f64 = where %19, %24, %20
%26: E[] f64 = reduce.sum %25 [0]"""),
        ("a number of each, kept", """
%16: unit[3] i64 = input arange_0_3
%17: E[] i64 = input kind
%18: E[1] i64 = reshape %17 [1]
%19: E[3] bool = eq %16, %18
%20: unit[] f64 = const 0.0
%21: unit[] f64 = const 0.5
%22: E[3] f64 = where %19, %21, %20
%23: V[3] f64 = push.sum %22, %15
%24: E[3] f64 = pull %23, %15
%25: E[3] f64 = where %19, %24, %20
%26: E[1] f64 = reduce.sum %25 [0] keepdim"""),
    ],
    "typed-push": [
        ("messages", """
%16: V[3] f64 = push.sum %9, %15"""),
        ("scaled by a number of each edge, with a sign", """
%16: E[1] f64 = input s
%17: E[3] f64 = mul %9, %16
%18: E[3] f64 = neg %17
%19: V[3] f64 = push.sum %18, %15"""),
        ("divided, shared numbers, blocks", """
%16: E[] f64 = input s
%17: E[2, 2] f64 = reshape %8 [2, 2]
%18: R[2, 2, 3] f64 = input blocks
%19: E[2, 3] f64 = matmul %17, %18, %3
%20: E[2, 3] f64 = div %19, %16
%21: E[2, 3] f64 = mul %12, %20
%22: V[2, 3] f64 = push.sum %21, %15"""),
        ("seen through a reshape", """
%16: E[3, 1] f64 = reshape %9 [3, 1]
%17: V[3, 1] f64 = push.sum %16, %15"""),
    ],
    "factored-bases": [
        ("two bases", """
%16: R[2] f64 = input comp
%17: unit[2, 12] f64 = input bases
%18: unit[2, 12] f64 = mul %17, %12
%19: R[12] f64 = matmul %16, %18
%20: R[4, 3] f64 = reshape %19 [4, 3]
%21: E[3] f64 = matmul %8, %20, %3"""),
        ("transposed", """
%16: R[2] f64 = input comp
%17: unit[2, 12] f64 = input bases
%18: R[12] f64 = matmul %16, %17
%19: R[3, 4] f64 = reshape %18 [3, 4]
%20: R[4, 3] f64 = permute %19 [1, 0]
%21: E[3] f64 = matmul %8, %20, %3"""),
    ],
    "compact": [
        ("a product", "%16: E[3] f64 = matmul %8, %5, %3"),
        ("blocks of a row", """
%16: E[2, 2] f64 = reshape %8 [2, 2]
%17: R[2, 2, 5] f64 = input blocks
%18: E[2, 5] f64 = matmul %16, %17, %3"""),
        ("the gradient of matrices", """
%16: E[3] f64 = input g
%17: R[4, 3] f64 = gram %8, %16, %3"""),
        ("the gradient of matrices, turned round", """
%16: E[2, 3] f64 = input g
%17: E[2, 2] f64 = reshape %8 [2, 2]
%18: R[2, 3, 2] f64 = gram %16, %17, %3"""),
        ("the gradient of rows", """
%16: E[9] f64 = input g
%17: E[8] f64 = matmul %16, %7, %3
%18: V[8] f64 = push.sum %17, %2"""),
        ("the gradient of blocks of rows", """
%16: E[9] f64 = input g
%17: E[8] f64 = matmul %16, %7, %3
%18: E[2, 4] f64 = reshape %17 [2, 4]
%19: V[2, 4] f64 = push.sum %18, %2"""),
        ("the gradient of rows, scaled, with a sign", """
%16: E[9] f64 = input g
%17: E[8] f64 = matmul %16, %7, %3
%18: E[1] f64 = input s
%19: E[8] f64 = div %17, %18
%20: E[8] f64 = neg %19
%21: E[1, 8] f64 = reshape %20 [1, 8]
%22: E[1, 8] f64 = mul %21, %12
%23: V[1, 8] f64 = push.sum %22, %2"""),
        ("rows of a type, each with a number", """
%16: E[1] f64 = input s
%17: E[4] f64 = mul %8, %16
%18: R[4] f64 = push.sum %17, %3"""),
        ("rows of a type, in blocks, divided, with a sign", """
%16: E[1, 1] f64 = input s
%17: E[2, 2] f64 = reshape %8 [2, 2]
%18: E[2, 2] f64 = div %17, %16
%19: E[2, 2] f64 = neg %18
%20: R[2, 2] f64 = push.sum %19, %3"""),
    ],
    "reorder": [
        ("a vector of types", """
%16: E[3] f64 = mul %9, %10
%17: E[] f64 = reduce.sum %16 [0]"""),
        ("scaled, with a sign, kept", """
%16: E[1] f64 = input s
%17: E[3] f64 = div %10, %16
%18: E[3] f64 = neg %17
%19: E[3] f64 = mul %9, %18
%20: E[1] f64 = reduce.sum %19 [0] keepdim"""),
        ("a shared vector", """
%16: unit[3] f64 = input q
%17: E[3] f64 = mul %16, %9
%18: E[] f64 = reduce.sum %17 [0]"""),
        ("heads", """
%16: R[4, 6] f64 = input heads
%17: E[6] f64 = matmul %8, %16, %3
%18: E[2, 3] f64 = reshape %17 [2, 3]
%19: R[2, 3] f64 = input q
%20: E[2, 3] f64 = pull %19, %3
%21: E[2, 1] f64 = input s
%22: E[2, 3] f64 = mul %18, %20
%23: E[2, 3] f64 = mul %22, %21
%24: E[2] f64 = reduce.sum %23 [1]"""),
        ("heads that share a vector of types", """
%16: R[4, 6] f64 = input heads
%17: E[6] f64 = matmul %8, %16, %3
%18: E[2, 3] f64 = reshape %17 [2, 3]
%19: E[2, 3] f64 = mul %18, %10
%20: E[2, 1] f64 = reduce.sum %19 [1] keepdim"""),
        ("heads that share a vector", """
%16: R[4, 6] f64 = input heads
%17: E[6] f64 = matmul %8, %16, %3
%18: E[2, 3] f64 = reshape %17 [2, 3]
%19: unit[3] f64 = input q
%20: E[2, 3] f64 = mul %18, %19
%21: E[2] f64 = reduce.sum %20 [1]"""),
        ("heads that share a vector seen otherwise", """
%16: R[4, 6] f64 = input heads
%17: E[6] f64 = matmul %8, %16, %3
%18: E[2, 3] f64 = reshape %17 [2, 3]
%19: unit[3, 1] f64 = input q
%20: unit[1, 3] f64 = reshape %19 [1, 3]
%21: E[2, 3] f64 = mul %18, %20
%22: E[2] f64 = reduce.sum %21 [1]"""),
        ("shared columns", """
%16: unit[3, 2] f64 = input q
%17: E[2] f64 = matmul %9, %16"""),
    ],
    "reorder-rows": [
        ("a vector of types", """
%16: R[3, 4] f64 = permute %5 [1, 0]
%17: E[4] f64 = matmul %10, %16, %3"""),
        ("scaled, with a sign", """
%16: R[3, 4] f64 = permute %5 [1, 0]
%17: E[] f64 = input s
%18: E[3] f64 = mul %10, %17
%19: E[3] f64 = div %18, %12
%20: E[3] f64 = neg %19
%21: E[4] f64 = matmul %20, %16, %3"""),
        ("a shared vector", """
%16: R[3, 4] f64 = permute %5 [1, 0]
%17: E[1] f64 = input s
%18: unit[3] f64 = input q
%19: E[3] f64 = mul %17, %18
%20: E[4] f64 = matmul %19, %16, %3"""),
        ("shared columns", """
%16: R[3, 4] f64 = permute %5 [1, 0]
%17: E[1] f64 = input s
%18: unit[1, 3] f64 = input q
%19: E[3] f64 = matmul %17, %18
%20: E[4] f64 = matmul %19, %16, %3"""),
    ],
    "reorder-matrices": [
        ("a vector of types", "%16: R[4, 3] f64 = gram %8, %10, %3"),
        ("scaled, with a sign", """
%16: E[1] f64 = input s
%17: E[3] f64 = mul %10, %16
%18: E[3] f64 = neg %17
%19: R[4, 3] f64 = gram %8, %18, %3"""),
        ("a shared vector", """
%16: E[1] f64 = input s
%17: unit[3] f64 = input q
%18: E[3] f64 = mul %17, %16
%19: R[4, 3] f64 = gram %8, %18, %3"""),
        ("shared columns", """
%16: E[1] f64 = input s
%17: unit[1, 3] f64 = input q
%18: E[3] f64 = matmul %16, %17
%19: R[4, 3] f64 = gram %8, %18, %3"""),
    ],
    "reorder-vectors": [
        ("of types", "%16: R[3] f64 = push.sum %9, %3"),
        ("scaled, with a sign", """
%16: E[1] f64 = input s
%17: E[3] f64 = div %9, %16
%18: E[3] f64 = neg %17
%19: R[3] f64 = push.sum %18, %3"""),
        ("heads", """
%16: R[4, 6] f64 = input heads
%17: E[6] f64 = matmul %8, %16, %3
%18: E[2, 3] f64 = reshape %17 [2, 3]
%19: E[2, 1] f64 = input s
%20: E[2, 3] f64 = mul %18, %19
%21: R[2, 3] f64 = push.sum %20, %3"""),
        ("heads of one number", """
%16: R[4, 6] f64 = input heads
%17: E[6] f64 = matmul %8, %16, %3
%18: E[6, 1] f64 = reshape %17 [6, 1]
%19: E[] f64 = input s
%20: E[6, 1] f64 = mul %18, %19
%21: R[6, 1] f64 = push.sum %20, %3"""),
        ("of a product with shared columns", """
%16: E[2] f64 = input d
%17: unit[3, 2] f64 = gram %9, %16"""),
        ("of a product with shared columns, turned round", """
%16: E[2] f64 = input d
%17: unit[2, 3] f64 = gram %16, %9"""),
    ],
    "reorder-sums": [
        ("rows", """
%16: R[3, 4] f64 = permute %5 [1, 0]
%17: E[3] f64 = input g
%18: E[3] f64 = sub %17, %10
%19: E[4] f64 = matmul %18, %16, %3"""),
        ("matrices", """
%16: E[3] f64 = input g
%17: E[1] f64 = input s
%18: E[3] f64 = mul %10, %17
%19: E[3] f64 = add %18, %16
%20: R[4, 3] f64 = gram %8, %19, %3"""),
        ("seen through a reshape", """
%16: R[6, 4] f64 = input heads
%17: E[2, 3] f64 = input g
%18: R[2, 3] f64 = input q
%19: E[2, 3] f64 = pull %18, %3
%20: E[2, 3] f64 = add %17, %19
%21: E[6] f64 = reshape %20 [6]
%22: E[4] f64 = matmul %21, %16, %3"""),
    ],
}  # fmt: skip
"""Rule -> titles and texts that follow HEAD. The rule applies to the last node."""

NO_MATTER = {
    "a dim of one that a transposition moved": """
%16: R[9, 1, 8] f64 = input y
%17: E[9, 1, 8] f64 = pull %16, %3
%18: E[9, 8, 1] f64 = permute %17 [0, 2, 1]
%19: E[1, 9, 8] f64 = reshape %18 [1, 9, 8]
%20: E[1, 9, 1] f64 = reshape %13 [1, 9, 1]
%21: E[1, 9, 8] f64 = mul %19, %20
%22: E[1, 8] f64 = reduce.sum %21 [1]""",
    "a matrix and its transpose": """
%16: R[9, 9] f64 = input y
%17: E[9, 9] f64 = pull %16, %3
%18: E[9, 9] f64 = permute %17 [1, 0]
%19: E[9] f64 = mul %13, %13
%20: E[9, 9] f64 = mul %18, %19
%21: E[9] f64 = reduce.sum %20 [1]""",
    "rows by a vector of types, that divides": """
%16: E[3] f64 = div %9, %10
%17: R[3] f64 = push.sum %16, %3""",
    "a constant vector of each edge": """
%16: E[3] f64 = const 2.0
%17: E[3] f64 = mul %9, %16
%18: E[] f64 = reduce.sum %17 [0]""",
    "a constant vector": """
%16: unit[3] f64 = const 2.0
%17: E[3] f64 = mul %9, %16
%18: E[] f64 = reduce.sum %17 [0]""",
    "shared data as rows of both ends": """
%16: unit[3] f64 = input p
%17: E[3] f64 = mul %16, %10
%18: R[3, 4] f64 = permute %5 [1, 0]
%19: E[4] f64 = matmul %17, %18, %3""",
    "vectors of heads, widened": """
%16: R[4, 6] f64 = input heads
%17: E[6] f64 = matmul %8, %16, %3
%18: E[2, 3] f64 = reshape %17 [2, 3]
%19: E[2, 3] f64 = broadcast %10 [2, 3]
%20: E[2, 3] f64 = mul %18, %19
%21: E[2] f64 = reduce.sum %20 [1]""",
    "a product on every head of another": """
%16: R[2, 3] f64 = input q
%17: E[2, 3] f64 = pull %16, %3
%18: E[2, 3] f64 = mul %9, %17
%19: E[2] f64 = reduce.sum %18 [1]""",
    "a sum of scaled products along both maps": """
%16: E[1] f64 = input s
%17: E[3] f64 = mul %9, %16
%18: V[3] f64 = push.sum %17, %2""",
}
"""Title -> text that follows HEAD. Rules may apply to any node or to none, but change no value."""
