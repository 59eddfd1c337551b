"""Small programs with typed products that a rule must leave alone, by rule: a title, and what follows HEAD."""

from __future__ import annotations

REFUSED = {
    "typed-linear": [
        ("a maximum", """
%16: E[9, 1] f64 = reshape %13 [9, 1]
%17: E[9, 8] f64 = mul %16, %11
%18: E[8] f64 = reduce.max %17 [0]"""),
        ("matrices that divide", """
%16: E[9, 1] f64 = reshape %13 [9, 1]
%17: E[9, 8] f64 = div %16, %11
%18: E[8] f64 = reduce.sum %17 [0]"""),
        ("a matrix that all share", """
%16: unit[9, 8] f64 = input shared
%17: E[9, 1] f64 = reshape %13 [9, 1]
%18: E[9, 8] f64 = mul %16, %17
%19: E[8] f64 = reduce.sum %18 [0]"""),
        ("a matrix that all share, spread", """
%16: unit[9, 8] f64 = input shared
%17: E -> unit = tounit E
%18: E[9, 8] f64 = pull %16, %17
%19: E[9, 1] f64 = reshape %13 [9, 1]
%20: E[9, 8] f64 = mul %18, %19
%21: E[8] f64 = reduce.sum %20 [0]"""),
        ("a matrix for each edge", """
%16: E[9, 8] f64 = input own
%17: E[9, 1] f64 = reshape %13 [9, 1]
%18: E[9, 8] f64 = mul %16, %17
%19: E[8] f64 = reduce.sum %18 [0]"""),
        ("an outer sum", """
%16: E[9, 1] f64 = reshape %13 [9, 1]
%17: E[9, 8] f64 = add %16, %11
%18: E[8] f64 = reduce.sum %17 [0]"""),
        ("a factor that stays", """
%16: E[8] f64 = input y
%17: E[9, 1] f64 = reshape %13 [9, 1]
%18: E[9, 8] f64 = mul %16, %17
%19: E[9, 8] f64 = mul %18, %11
%20: E[8] f64 = reduce.sum %19 [0]"""),
        ("two matrices", """
%16: E[9, 8] f64 = mul %11, %11
%17: E[8] f64 = reduce.sum %16 [0]"""),
        ("both dims", """
%16: E[9, 1] f64 = reshape %13 [9, 1]
%17: E[9, 8] f64 = mul %16, %11
%18: E[] f64 = reduce.sum %17 [0, 1]"""),
        ("the sum over blocks", """
%16: R[9, 3, 8] f64 = input blocks
%17: E[9, 3, 8] f64 = pull %16, %3
%18: E[9, 1, 1] f64 = reshape %13 [9, 1, 1]
%19: E[9, 3, 8] f64 = mul %17, %18
%20: E[3, 8] f64 = reduce.sum %19 [0]"""),
        ("small matrices", """
%16: E[4, 1] f64 = reshape %8 [4, 1]
%17: E[4, 3] f64 = pull %5, %3
%18: E[4, 3] f64 = mul %16, %17
%19: E[3] f64 = reduce.sum %18 [0]"""),
        ("vectors", """
%16: R[70, 1] f64 = input y
%17: E[70, 1] f64 = pull %16, %3
%18: E[70, 1] f64 = mul %17, %12
%19: E[1] f64 = reduce.sum %18 [0]"""),
        ("integers", """
%16: R[9, 8] i64 = input integers
%17: E[9, 8] i64 = pull %16, %3
%18: E[9, 1] i64 = input y
%19: E[9, 8] i64 = mul %17, %18
%20: E[8] i64 = reduce.sum %19 [0]"""),
        ("other dims turned", """
%16: R[8, 9, 2] f64 = input blocks
%17: E[8, 9, 2] f64 = pull %16, %3
%18: E[2, 9, 8] f64 = permute %17 [2, 1, 0]
%19: E[9, 1] f64 = reshape %13 [9, 1]
%20: E[2, 9, 8] f64 = mul %18, %19
%21: E[2, 8] f64 = reduce.sum %20 [1]"""),
        ("the largest outer product", """
%16: E[8] f64 = input y
%17: E[9, 1] f64 = reshape %13 [9, 1]
%18: E[9, 8] f64 = mul %17, %16
%19: R[9, 8] f64 = push.max %18, %3"""),
        ("types without rows are not 0", """
%16: E[8] f64 = input y
%17: E[9, 1] f64 = reshape %13 [9, 1]
%18: E[9, 8] f64 = mul %17, %16
%19: R[9, 8] f64 = push.sum %18, %3 empty=1.0"""),
        ("outer products along a map of no matrices", """
%16: E[8] f64 = input y
%17: E[9, 1] f64 = reshape %13 [9, 1]
%18: E[9, 8] f64 = mul %17, %16
%19: V[9, 8] f64 = push.sum %18, %2"""),
        ("outer products over all rows", """
%16: E[8] f64 = input y
%17: E[9, 1] f64 = reshape %13 [9, 1]
%18: E[9, 8] f64 = mul %17, %16
%19: E -> unit = tounit E
%20: unit[9, 8] f64 = push.sum %18, %19"""),
        ("no outer product", """
%16: E[9, 8] f64 = input y
%17: E[9, 8] f64 = mul %16, %11
%18: R[9, 8] f64 = push.sum %17, %3"""),
        ("one side of a product", """
%16: E[9, 1] f64 = reshape %13 [9, 1]
%17: unit[9, 8] f64 = const 1.0
%18: E[9, 8] f64 = mul %16, %17
%19: R[9, 8] f64 = push.sum %18, %3"""),
        ("outer products of integers", """
%16: E[8] i64 = input y
%17: E[9, 1] i64 = input z
%18: E[9, 8] i64 = mul %17, %16
%19: R[9, 8] i64 = push.sum %18, %3"""),
    ],
    "scale-out-of-gathered": [
        ("nothing to scale", "%16: E[3] f64 = matmul %8, %5, %3"),
        ("rows of the edges", """
%16: E[4] f64 = input y
%17: E[4] f64 = mul %16, %12
%18: E[3] f64 = matmul %17, %5, %3"""),
        ("rows divide a number", """
%16: E[4] f64 = div %12, %8
%17: E[3] f64 = matmul %16, %5, %3"""),
        ("a number a feature", """
%16: unit[4] f64 = input s
%17: E[4] f64 = mul %8, %16
%18: E[3] f64 = matmul %17, %5, %3"""),
        ("a number a block", """
%16: E[2, 2] f64 = reshape %8 [2, 2]
%17: E[2, 1] f64 = input s
%18: E[2, 2] f64 = mul %16, %17
%19: R[2, 2, 3] f64 = input blocks
%20: E[2, 3] f64 = matmul %18, %19, %3"""),
        ("two pulled rows", """
%16: E[4] f64 = pull %4, %15
%17: E[4] f64 = mul %8, %16
%18: E[3] f64 = matmul %17, %5, %3"""),
        ("shared rows, spread", """
%16: unit[4] f64 = input y
%17: E -> unit = tounit E
%18: E[4] f64 = pull %16, %17
%19: E[4] f64 = mul %18, %12
%20: E[3] f64 = matmul %19, %5, %3"""),
    ],
    "column-counts": [
        ("edges that are weighted", """
%16: unit[3] i64 = input arange_0_3
%17: E[] i64 = input kind
%18: E[1] i64 = reshape %17 [1]
%19: E[3] bool = eq %16, %18
%20: unit[] f64 = const 0.0
%21: E[1] f64 = input s
%22: E[3] f64 = where %19, %21, %20
%23: V[3] f64 = push.sum %22, %15
%24: E[3] f64 = pull %23, %15
%25: E[3] f64 = where %19, %24, %20
%26: E[] f64 = reduce.sum %25 [0]"""),
        ("seen from the other end", """
%16: unit[3] i64 = input arange_0_3
%17: E[] i64 = input kind
%18: E[1] i64 = reshape %17 [1]
%19: E[3] bool = eq %16, %18
%20: unit[] f64 = const 0.0
%21: unit[] f64 = const 1.0
%22: E[3] f64 = where %19, %21, %20
%23: V[3] f64 = push.sum %22, %15
%24: E[3] f64 = pull %23, %2
%25: E[3] f64 = where %19, %24, %20
%26: E[] f64 = reduce.sum %25 [0]"""),
        ("whether there are any", """
%16: unit[3] i64 = input arange_0_3
%17: E[] i64 = input kind
%18: E[1] i64 = reshape %17 [1]
%19: E[3] bool = eq %16, %18
%20: unit[] f64 = const 0.0
%21: unit[] f64 = const 1.0
%22: E[3] f64 = where %19, %21, %20
%23: V[3] f64 = push.max %22, %15
%24: E[3] f64 = pull %23, %15
%25: E[3] f64 = where %19, %24, %20
%26: E[] f64 = reduce.sum %25 [0]"""),
        ("the column of another kind", """
%16: unit[3] i64 = input arange_0_3
%17: E[] i64 = input kind
%18: E[1] i64 = reshape %17 [1]
%19: E[3] bool = eq %16, %18
%20: unit[] f64 = const 0.0
%21: unit[] f64 = const 1.0
%22: E[3] f64 = where %19, %21, %20
%23: V[3] f64 = push.sum %22, %15
%24: E[3] f64 = pull %23, %15
%25: E[] i64 = input other_kind
%26: E[1] i64 = reshape %25 [1]
%27: E[3] bool = eq %16, %26
%28: E[3] f64 = where %27, %24, %20
%29: E[] f64 = reduce.sum %28 [0]"""),
        ("a node has two numbers", """
%16: E[] i64 = input far
%17: E -> V = map %16 to V wrap
%18: unit[3] i64 = input arange_0_3
%19: E[] i64 = input kind
%20: E[1] i64 = reshape %19 [1]
%21: E[3] bool = eq %18, %20
%22: unit[] f64 = const 0.0
%23: unit[] f64 = const 1.0
%24: E[3] f64 = where %21, %23, %22
%25: V[3] f64 = push.sum %24, %17
%26: E[3] f64 = pull %25, %17
%27: E[3] f64 = where %21, %26, %22
%28: E[] f64 = reduce.sum %27 [0]"""),
        ("along another dim", """
%16: unit[3] i64 = input arange_0_3
%17: E[] i64 = input kind
%18: E[1] i64 = reshape %17 [1]
%19: E[3] bool = eq %16, %18
%20: unit[] f64 = const 0.0
%21: E[2, 3] f64 = const 1.0
%22: E[2, 3] f64 = where %19, %21, %20
%23: V[2, 3] f64 = push.sum %22, %15
%24: E[2, 3] f64 = pull %23, %15
%25: E[2, 3] f64 = where %19, %24, %20
%26: E[3] f64 = reduce.sum %25 [0]"""),
    ],
    "typed-push": [
        ("a maximum", "%16: V[3] f64 = push.max %9, %15"),
        ("another empty row", "%16: V[3] f64 = push.sum %9, %15 empty=1.0"),
        ("a total", """
%16: E -> unit = tounit E
%17: unit[3] f64 = push.sum %9, %16"""),
        ("a factor for each feature", """
%16: E[3] f64 = mul %9, %10
%17: V[3] f64 = push.sum %16, %15"""),
        ("a product that divides", """
%16: E[1] f64 = input s
%17: E[3] f64 = div %16, %9
%18: V[3] f64 = push.sum %17, %15"""),
        ("the square of a product", """
%16: E[3] f64 = mul %9, %9
%17: V[3] f64 = push.sum %16, %15"""),
        ("a product spread over features", """
%16: E[3, 1] f64 = reshape %9 [3, 1]
%17: E[3, 2] f64 = broadcast %16 [3, 2]
%18: V[3, 2] f64 = push.sum %17, %15"""),
        ("rows as they are", "%16: V[4] f64 = push.sum %8, %15"),
    ],
    "factored-bases": [
        ("matrices that are given", "%16: E[3] f64 = matmul %8, %5, %3"),
        ("blocks", """
%16: R[2] f64 = input comp
%17: unit[2, 12] f64 = input bases
%18: R[12] f64 = matmul %16, %17
%19: R[2, 2, 3] f64 = reshape %18 [2, 2, 3]
%20: E[2, 2] f64 = reshape %8 [2, 2]
%21: E[2, 3] f64 = matmul %20, %19, %3"""),
    ],
    "compact": [
        ("rows pulled along another map", """
%16: E[4] f64 = pull %4, %15
%17: E[3] f64 = matmul %16, %5, %3"""),
        ("types along another map", """
%16: V[4, 3] f64 = input y
%17: E[3] f64 = matmul %8, %16, %15"""),
        ("rows of the edges", """
%16: E[4] f64 = input y
%17: E[3] f64 = matmul %16, %5, %3"""),
        ("work on rows before the product", """
%16: E[4] f64 = tanh %8
%17: E[3] f64 = matmul %16, %5, %3"""),
        ("a gram of edges", """
%16: E[3] f64 = input g
%17: E[4] f64 = input y
%18: R[4, 3] f64 = gram %17, %16, %3"""),
        ("a gram along another map", """
%16: E[3] f64 = input g
%17: V[4, 3] f64 = gram %8, %16, %15"""),
        ("the largest product", """
%16: E[9] f64 = input g
%17: E[8] f64 = matmul %16, %7, %3
%18: V[8] f64 = push.max %17, %2"""),
        ("rows without edges are not 0", """
%16: E[9] f64 = input g
%17: E[8] f64 = matmul %16, %7, %3
%18: V[8] f64 = push.sum %17, %2 empty=1.0"""),
        ("a sum along another map", """
%16: E[9] f64 = input g
%17: E[8] f64 = matmul %16, %7, %3
%18: V[8] f64 = push.sum %17, %15"""),
        ("a number a feature", """
%16: E[9] f64 = input g
%17: E[8] f64 = matmul %16, %7, %3
%18: unit[8] f64 = input s
%19: E[8] f64 = mul %17, %18
%20: V[8] f64 = push.sum %19, %2"""),
        ("a product that divides", """
%16: E[9] f64 = input g
%17: E[8] f64 = matmul %16, %7, %3
%18: E[8] f64 = div %12, %17
%19: V[8] f64 = push.sum %18, %2"""),
        ("a square", """
%16: E[9] f64 = input g
%17: E[8] f64 = matmul %16, %7, %3
%18: E[8] f64 = mul %17, %17
%19: V[8] f64 = push.sum %18, %2"""),
        ("rows of a type without a number", "%16: R[4] f64 = push.sum %8, %3"),
        ("rows of a type, with a number a feature", """
%16: E[4] f64 = input s
%17: E[4] f64 = mul %8, %16
%18: R[4] f64 = push.sum %17, %3"""),
        ("rows of a type that divide", """
%16: E[1] f64 = input s
%17: E[4] f64 = div %16, %8
%18: R[4] f64 = push.sum %17, %3"""),
        ("numbers of a type", """
%16: V[1] f64 = input y
%17: E[1] f64 = pull %16, %2
%18: E[1] f64 = input s
%19: E[1] f64 = mul %17, %18
%20: R[1] f64 = push.sum %19, %3"""),
        ("work on both, of which nothing is compact", """
%16: E[4] f64 = tanh %8
%17: E[3] f64 = slice %8 dim=0 0:3:1
%18: E[3] f64 = mul %17, %10"""),
    ],
    "reorder": [
        ("a vector along another map", """
%16: V[3] f64 = input q
%17: E[3] f64 = pull %16, %2
%18: E[3] f64 = mul %9, %17
%19: E[] f64 = reduce.sum %18 [0]"""),
        ("a vector of each edge", """
%16: E[3] f64 = input q
%17: E[3] f64 = mul %9, %16
%18: E[] f64 = reduce.sum %17 [0]"""),
        ("a vector that divides", """
%16: E[3] f64 = div %9, %10
%17: E[] f64 = reduce.sum %16 [0]"""),
        ("a product that divides", """
%16: E[3] f64 = div %10, %9
%17: E[] f64 = reduce.sum %16 [0]"""),
        ("a maximum", """
%16: E[3] f64 = mul %9, %10
%17: E[] f64 = reduce.max %16 [0]"""),
        ("a sum over heads", """
%16: R[4, 6] f64 = input heads
%17: E[6] f64 = matmul %8, %16, %3
%18: E[2, 3] f64 = reshape %17 [2, 3]
%19: E[2, 3] f64 = mul %18, %10
%20: E[3] f64 = reduce.sum %19 [0]"""),
        ("blocks", """
%16: E[2, 2] f64 = reshape %8 [2, 2]
%17: R[2, 2, 3] f64 = input blocks
%18: E[2, 3] f64 = matmul %16, %17, %3
%19: E[2, 3] f64 = mul %18, %10
%20: E[2] f64 = reduce.sum %19 [1]"""),
        ("the square of a product", """
%16: E[3] f64 = mul %9, %9
%17: E[] f64 = reduce.sum %16 [0]"""),
        ("two vectors", """
%16: E[3] f64 = mul %9, %10
%17: E[3] f64 = mul %16, %10
%18: E[] f64 = reduce.sum %17 [0]"""),
        ("no vector", "%16: E[] f64 = reduce.sum %9 [0]"),
        ("a bias", """
%16: unit[3] f64 = input bias
%17: E[3] f64 = add %9, %16
%18: unit[3, 2] f64 = input q
%19: E[2] f64 = matmul %17, %18"""),
    ],
    "reorder-rows": [
        ("a vector along another map", """
%16: R[3, 4] f64 = permute %5 [1, 0]
%17: V[3] f64 = input q
%18: E[3] f64 = pull %17, %2
%19: E[4] f64 = matmul %18, %16, %3"""),
        ("a vector that divides", """
%16: R[3, 4] f64 = permute %5 [1, 0]
%17: E[3] f64 = div %12, %10
%18: E[4] f64 = matmul %17, %16, %3"""),
        ("blocks", """
%16: R[2, 3, 4] f64 = input blocks
%17: R[2, 3] f64 = input q
%18: E[2, 3] f64 = pull %17, %3
%19: E[2, 4] f64 = matmul %18, %16, %3"""),
        ("a number a row", """
%16: R[1, 4] f64 = input one
%17: E[1] f64 = input s
%18: E[4] f64 = matmul %17, %16, %3"""),
        ("shared columns, as many as features", """
%16: R[3, 4] f64 = permute %5 [1, 0]
%17: E[2] f64 = input s
%18: unit[2, 3] f64 = input q
%19: E[3] f64 = matmul %17, %18
%20: E[4] f64 = matmul %19, %16, %3"""),
    ],
    "reorder-matrices": [
        ("a vector along another map", """
%16: V[3] f64 = input q
%17: E[3] f64 = pull %16, %2
%18: R[4, 3] f64 = gram %8, %17, %3"""),
        ("a vector that divides", """
%16: E[3] f64 = div %12, %10
%17: R[4, 3] f64 = gram %8, %16, %3"""),
        ("blocks", """
%16: E[2, 2] f64 = reshape %8 [2, 2]
%17: R[2, 3] f64 = input q
%18: E[2, 3] f64 = pull %17, %3
%19: R[2, 2, 3] f64 = gram %16, %18, %3"""),
        ("a number a row", """
%16: E[1] f64 = input s
%17: R[4, 1] f64 = gram %8, %16, %3"""),
    ],
    "reorder-vectors": [
        ("along another map", "%16: V[3] f64 = push.sum %9, %2"),
        ("a maximum", "%16: R[3] f64 = push.max %9, %3"),
        ("types without rows are not 0", "%16: R[3] f64 = push.sum %9, %3 empty=2.0"),
        ("a number a feature", """
%16: unit[3] f64 = input s
%17: E[3] f64 = mul %9, %16
%18: R[3] f64 = push.sum %17, %3"""),
        ("a square", """
%16: E[3] f64 = mul %9, %9
%17: R[3] f64 = push.sum %16, %3"""),
        ("a product that divides", """
%16: E[3] f64 = div %12, %9
%17: R[3] f64 = push.sum %16, %3"""),
        ("over all rows", """
%16: E -> unit = tounit E
%17: unit[3] f64 = push.sum %9, %16"""),
        ("blocks", """
%16: E[2, 2] f64 = reshape %8 [2, 2]
%17: R[2, 2, 3] f64 = input blocks
%18: E[2, 3] f64 = matmul %16, %17, %3
%19: R[2, 3] f64 = push.sum %18, %3"""),
    ],
    "reorder-sums": [
        ("no part has a vector", """
%16: R[3, 4] f64 = permute %5 [1, 0]
%17: E[3] f64 = input g
%18: E[3] f64 = input h
%19: E[3] f64 = sub %17, %18
%20: E[4] f64 = matmul %19, %16, %3"""),
        ("a part that is shared", """
%16: R[3, 4] f64 = permute %5 [1, 0]
%17: unit[3] f64 = input bias
%18: E[3] f64 = add %10, %17
%19: E[4] f64 = matmul %18, %16, %3"""),
        ("a part that is shared, in a gram", """
%16: E[3] f64 = input g
%17: unit[3] f64 = input bias
%18: E[3] f64 = sub %17, %16
%19: R[4, 3] f64 = gram %8, %18, %3"""),
        ("a part that is broadcast", """
%16: R[3, 4] f64 = permute %5 [1, 0]
%17: E[1] f64 = input s
%18: E[3] f64 = add %10, %17
%19: E[4] f64 = matmul %18, %16, %3"""),
        ("the larger of both", """
%16: R[3, 4] f64 = permute %5 [1, 0]
%17: E[3] f64 = input g
%18: E[3] f64 = maximum %10, %17
%19: E[4] f64 = matmul %18, %16, %3"""),
    ],
}  # fmt: skip
