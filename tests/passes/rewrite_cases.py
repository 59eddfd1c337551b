"""Small programs to which a rewrite rule applies, and programs it must leave alone."""

from __future__ import annotations

HEAD = """
space V = s0
space W = s1
space E = s2
%0: E[] i64 = input src
%1: E[] i64 = input dst
%2: E -> V = map %0 to V
%3: E -> W = map %1 to W
%4: V[4] f64 = input x
%5: W[4] f64 = input b
%6: E[4] f64 = input e
%7: unit[4, 3] f64 = input w
%8: unit[] f64 = input u
%9: E[4] f64 = pull %4, %2
%10: E[4] f64 = pull %5, %3
%11: W[4] f64 = push.sum %6, %3
"""
"""Inputs x on V, b on W and e on E; %9 is x pulled to E, %10 is b pulled to E, and %11 is e pushed to W."""

APPLIES = {
    "join-parts": [
        ("a part of what was joined", """
%12: U[4] f64 = join %4, %5 U
%13: W[4] f64 = part %12 of=[V, W] at=1"""),
        ("all parts joined again", """
%12: U[4] f64 = join %4, %5 U
%13: U[4] f64 = exp %12
%14: V[4] f64 = part %13 of=[V, W] at=0
%15: W[4] f64 = part %13 of=[V, W] at=1
%16: U[4] f64 = join %14, %15 U"""),
        ("gradients of slices, each padded with zeros", """
%12: V[4] f64 = const 0.0
%13: W[4] f64 = const 0.0
%14: U[4] f64 = join %4, %13 U
%15: U[4] f64 = join %12, %5 U
%16: U[4] f64 = add %14, %15"""),
    ],
    "copies-apart": [
        ("a product of two heads", """
%12: D[4] f64 = join %6, %9 D
%13: D[] i64 = join %0, %0 D
%14: D -> V = map %13 to V
%15: V[4, 3] f64 = input matrices
%16: D[3] f64 = matmul %12, %15, %14"""),
        ("a gram of two heads", """
%12: D[4] f64 = join %6, %9 D
%13: D[4] f64 = join %10, %6 D
%14: D[] i64 = join %0, %0 D
%15: D -> V = map %14 to V
%16: V[4, 4] f64 = gram %12, %13, %15"""),
    ],
    "join-orders": [
        ("the order after two sorts", """
%12: E[] f64 = reduce.sum %6 [0]
%13: E[] i64 = order %12 descending=[true]
%14: E -> E = map %13 to E
%15: E[] i64 = pull %1, %14
%16: E[] i64 = order %15 descending=[false]
%17: E -> E = map %16 to E
%18: E[] i64 = pull %13, %17"""),
        ("values in that order, some of them", """
%12: E[] f64 = reduce.sum %6 [0]
%13: E[] i64 = order %12 descending=[true]
%14: E -> E = map %13 to E
%15: E[] i64 = pull %1, %14
%16: E[] i64 = pull %0, %14
%17: E[] i64 = order %15, %16 descending=[false, true]
%18: E[] bool = gt %0, %1
%19: M[] i64 = chosen %18 M
%20: M -> E = map %19 to E
%21: M[] i64 = pull %17, %20
%22: M -> E = map %21 to E
%23: E[4] f64 = pull %6, %14
%24: M[4] f64 = pull %23, %22"""),
    ],
    "join-selects": [
        ("the gradient of jnp.where", """
%12: E[] bool = gt %0, %1
%13: unit[] f64 = const 0.0
%14: E[4] f64 = where %12, %6, %13
%15: E[4] f64 = where %12, %13, %9
%16: unit[] f64 = const 0.2
%17: E[4] f64 = mul %16, %15
%18: E[4] f64 = add %17, %14"""),
        ("numbers in both terms, a zero with a dim", """
%12: E[4] bool = gt %6, %9
%13: unit[1] f64 = const 0.0
%14: unit[] f64 = const 3.0
%15: E[4] f64 = where %12, %13, %10
%16: E[4] f64 = mul %15, %14
%17: E[4] f64 = mul %16, %14
%18: E[4] f64 = where %12, %8, %13
%19: E[4] f64 = add %17, %18"""),
    ],
    "common-factor": [
        ("leaky ReLU's gradient", """
%12: E[] bool = gt %0, %1
%13: E[4] f64 = mul %6, %10
%14: unit[] f64 = const 0.2
%15: E[4] f64 = mul %14, %6
%16: E[4] f64 = where %12, %13, %15"""),
        ("a narrow factor with a sign", """
%12: unit[4] bool = input c
%13: E[1] f64 = input s
%14: E[4] f64 = mul %13, %6
%15: E[4] f64 = div %13, %10
%16: E[4] f64 = neg %15
%17: E[4] f64 = where %12, %14, %16"""),
        ("shared data on the rows of ones", """
%12: unit[] bool = input c
%13: E[4] f64 = const 1.0
%14: E[4] f64 = mul %13, %8
%15: unit[] f64 = const 0.2
%16: E[4] f64 = mul %14, %15
%17: E[4] f64 = where %12, %14, %16"""),
    ],
    "compose-maps": [
        ("pulls", """
%12: W[] i64 = input graph
%13: W -> V = map %12 to V
%14: W[4] f64 = pull %4, %13
%15: E[4] f64 = pull %14, %3"""),
        ("pushes", """
%12: W[] i64 = input graph
%13: W -> V = map %12 to V wrap
%14: V[4] f64 = push.sum %11, %13"""),
    ],
    "fold-constants": [
        ("arithmetic", """
%12: unit[4] f64 = const 2.0
%13: E[] f64 = const 0.5
%14: E[4] f64 = pow %12, %13"""),
        ("times one", """
%12: unit[] f64 = const 1.0
%13: E[4] f64 = mul %12, %6"""),
        ("minus zero", """
%12: unit[] f64 = const 0.0
%13: E[4] f64 = sub %6, %12"""),
    ],
    "distribute": [
        ("one part is the row's own", """
%12: E[4] f64 = mul %10, %6
%13: E[4] f64 = sub %12, %9
%14: E[4] f64 = mul %13, %8
%15: W[4] f64 = push.sum %14, %3"""),
        ("the other is shared data", """
%12: unit[4] f64 = input bias
%13: E[4] f64 = mul %10, %6
%14: E[4] f64 = add %13, %12
%15: W[4] f64 = push.sum %14, %3"""),
        ("one part is broadcast", """
%12: W[1, 4] f64 = input y
%13: E[1, 4] f64 = pull %12, %3
%14: E[2, 1] f64 = input z
%15: E[2, 4] f64 = mul %13, %14
%16: E[2, 4] f64 = add %15, %6
%17: E[1, 2, 4] f64 = reshape %16 [1, 2, 4]
%18: E[1, 2, 4] f64 = neg %17
%19: W[1, 2, 4] f64 = push.sum %18, %3"""),
    ],
    "factor": [
        ("product", """
%12: E[4] f64 = mul %6, %10
%13: W[4] f64 = push.sum %12, %3"""),
        ("quotient, guarded", """
%12: E[4] f64 = div %6, %10
%13: W[4] f64 = push.sum %12, %3"""),
        ("degree", """
%12: E[4] f64 = neg %10
%13: W[4] f64 = push.sum %12, %3"""),
        ("a count along another map, guarded", """
%12: E[] i64 = input other
%13: E -> W = map %12 to W
%14: E[] f64 = const 1.0
%15: W[] f64 = push.sum %14, %13
%16: unit[] f64 = const 1.0
%17: W[] f64 = sub %16, %15
%18: E[] f64 = pull %17, %3
%19: E[4] f64 = div %9, %18
%20: W[4] f64 = push.sum %19, %3"""),
        ("softmax's division", """
%12: E[4] f64 = exp %6
%13: W[4] f64 = push.sum %12, %3
%14: unit[] f64 = const 1e-16
%15: W[4] f64 = add %13, %14
%16: E[4] f64 = pull %15, %3
%17: E[4] f64 = div %12, %16
%18: E[4] f64 = mul %9, %17
%19: W[4] f64 = push.sum %18, %3"""),
    ],
    "feature-sum": [
        ("softmax's gradient", """
%12: E[4] f64 = mul %10, %9
%13: E[1] f64 = reduce.sum %12 [0] keepdim
%14: E[] f64 = reshape %13 []
%15: E[] f64 = input a
%16: E[] f64 = mul %15, %14
%17: W[] f64 = push.sum %16, %3"""),
        ("over the first of two dims", """
%12: W[3, 2] f64 = input y
%13: E[3, 2] f64 = pull %12, %3
%14: E[3, 1] f64 = input z
%15: E[3, 2] f64 = div %13, %14
%16: E[3, 2] f64 = neg %15
%17: E[2] f64 = reduce.sum %16 [0]
%18: E[1] f64 = input a
%19: E[2] f64 = mul %17, %18
%20: E[2, 1] f64 = reshape %19 [2, 1]
%21: W[2, 1] f64 = push.sum %20, %3"""),
    ],
    "injective-maps": [
        ("positions of a mask", """
%12: V[] bool = input mask
%13: M[1] i64 = call aten.nonzero.default(%12)
%14: M[] i64 = reshape %13 []
%15: M -> V = map %14 to V
%16: M[4] f64 = pull %4, %15
%17: M[4] f64 = tanh %16
%18: V[4] f64 = push.sum %17, %15
%19: M[4] f64 = pull %18, %15"""),
    ],
    "linear-into-push": [
        ("product", "%12: W[3] f64 = matmul %11, %7"),
        ("gram, first", "%12: unit[4, 4] f64 = gram %11, %5"),
        ("gram, second", "%12: unit[4, 4] f64 = gram %5, %11"),
        ("through a reshape", """
%12: E[2, 2] f64 = input y
%13: W[2, 2] f64 = push.sum %12, %3
%14: W[4] f64 = reshape %13 [4]
%15: W[3] f64 = matmul %14, %7"""),
    ],
    "narrow-sums": [
        ("a product of a mean", """
%12: W[4] f64 = push.sum %9, %3
%13: E[] f64 = const 1.0
%14: W[] f64 = push.sum %13, %3
%15: W[1] f64 = reshape %14 [1]
%16: W[4] f64 = div %12, %15
%17: W[3] f64 = matmul %16, %7"""),
        ("the gradient of its weights", """
%12: W[4] f64 = push.sum %9, %3
%13: W[1] f64 = input s
%14: W[4] f64 = div %12, %13
%15: W[3] f64 = input g
%16: unit[3, 4] f64 = gram %15, %14"""),
        ("the gradient of its rows", """
%12: W[3] f64 = input g
%13: unit[3, 4] f64 = permute %7 [1, 0]
%14: W[4] f64 = matmul %12, %13
%15: W[1] f64 = input s
%16: W[4] f64 = div %14, %15
%17: E[4] f64 = pull %16, %3
%18: V[4] f64 = push.sum %17, %2"""),
        ("numbers of edges, a minus, shared data", """
%12: E[] f64 = input s
%13: E[1] f64 = reshape %12 [1]
%14: E[4] f64 = mul %13, %9
%15: W[4] f64 = push.sum %14, %3
%16: W[4] f64 = neg %15
%17: W[2, 2] f64 = reshape %16 [2, 2]
%18: W[2, 2] f64 = mul %17, %8
%19: W[4] f64 = reshape %18 [4]
%20: W[3] f64 = input g
%21: unit[4, 3] f64 = gram %19, %20"""),
        ("two values, one of them not summed", """
%12: W[4] f64 = push.sum %9, %3
%13: W[4] f64 = mul %5, %8
%14: W[4] f64 = sub %12, %13
%15: W[3] f64 = input g
%16: unit[4, 3] f64 = gram %14, %15"""),
        ("a row's own value in the sum", """
%12: E[] i64 = input other
%13: E -> W = map %12 to W
%14: E[4] f64 = pull %5, %13
%15: W[4] f64 = push.sum %14, %3
%16: W[4] f64 = mul %5, %8
%17: W[4] f64 = add %16, %15
%18: W[3] f64 = matmul %17, %7"""),
        ("two steps", """
%12: W[4] f64 = push.sum %9, %3
%13: W[4] f64 = mul %12, %8
%14: E[4] f64 = pull %13, %3
%15: V[4] f64 = push.sum %14, %2
%16: V[3] f64 = input g
%17: unit[4, 3] f64 = gram %15, %16"""),
        ("rows that are not finite where nobody pulls", """
%12: unit[] f64 = const 1.0
%13: W[4] f64 = div %12, %5
%14: E[4] f64 = pull %13, %3
%15: V[4] f64 = push.sum %14, %2
%16: V[3] f64 = input g
%17: unit[4, 3] f64 = gram %15, %16"""),
        ("a number that is not finite where nobody pulls", """
%12: W[1] f64 = input s
%13: W[4] f64 = div %5, %12
%14: E[4] f64 = pull %13, %3
%15: V[4] f64 = push.sum %14, %2
%16: V[3] f64 = input g
%17: unit[3, 4] f64 = gram %16, %15"""),
        ("a number between two steps, finite there", """
%12: E[] f64 = const 1.0
%13: W[] f64 = push.sum %12, %3
%14: unit[] f64 = const 1.0
%15: W[] f64 = maximum %13, %14
%16: W[1] f64 = reshape %15 [1]
%17: W[4] f64 = push.sum %9, %3
%18: W[4] f64 = div %17, %16
%19: E[4] f64 = pull %18, %3
%20: V[4] f64 = push.sum %19, %2
%21: V[3] f64 = input g
%22: unit[4, 3] f64 = gram %20, %21"""),
    ],
    "linear-out-of-push": [
        ("product", """
%12: E[3] f64 = matmul %6, %7
%13: W[3] f64 = push.sum %12, %3"""),
        ("a part that is a product", """
%12: E[3] f64 = matmul %6, %7
%13: E[3] f64 = input y
%14: E[3] f64 = sub %12, %13
%15: W[3] f64 = push.sum %14, %3"""),
        ("a part that is broadcast", """
%12: E[3] f64 = matmul %6, %7
%13: E[1] f64 = input y
%14: E[3] f64 = add %12, %13
%15: W[3] f64 = push.sum %14, %3"""),
        ("a product with a bias, times a number an edge", """
%12: E[3] f64 = matmul %6, %7
%13: unit[3] f64 = input bias
%14: E[3] f64 = add %12, %13
%15: E[1] f64 = input s
%16: E[3] f64 = mul %14, %15
%17: E[3] f64 = neg %16
%18: W[3] f64 = push.sum %17, %3"""),
        ("a bias minus a product", """
%12: E[3] f64 = matmul %6, %7
%13: unit[3] f64 = input bias
%14: E[3] f64 = sub %13, %12
%15: W[3] f64 = push.sum %14, %3"""),
        ("a product divided by a number an edge, seen through a reshape", """
%12: E[3] f64 = matmul %6, %7
%13: E[] f64 = input s
%14: E[3] f64 = div %12, %13
%15: E[1, 3] f64 = reshape %14 [1, 3]
%16: W[1, 3] f64 = push.sum %15, %3"""),
        ("gram of pulled rows times a number an edge", """
%12: E[1] f64 = input s
%13: E[4] f64 = mul %12, %9
%14: E[4] f64 = neg %13
%15: unit[4, 4] f64 = gram %6, %14"""),
        ("gram, first", "%12: unit[4, 4] f64 = gram %9, %6"),
        ("gram, second, not finite where nobody pulls", """
%12: unit[] f64 = const 1.0
%13: W[4] f64 = div %12, %5
%14: E[4] f64 = pull %13, %3
%15: unit[4, 4] f64 = gram %6, %14"""),
    ],
    "scale-out-of-linear": [
        ("a number a row", """
%12: V[1] f64 = input s
%13: V[4] f64 = mul %12, %4
%14: V[3] f64 = matmul %13, %7"""),
        ("a mean", """
%12: W[] f64 = input s
%13: W[1] f64 = reshape %12 [1]
%14: W[4] f64 = div %11, %13
%15: unit[4, 4] f64 = gram %5, %14"""),
    ],
    "postpone": [
        ("product", "%12: E[3] f64 = matmul %9, %7"),
        ("product of pulled rows times a number an edge", """
%12: E[1] f64 = input s
%13: E[4] f64 = mul %9, %12
%14: E[3] f64 = matmul %13, %7"""),
        ("with shared data and a constant", """
%12: E[] f64 = const 0.5
%13: unit[] bool = input c
%14: E[4] f64 = where %13, %12, %10"""),
        ("two values, one through a reshape", """
%12: V[2, 2] f64 = input y
%13: E[2, 2] f64 = pull %12, %2
%14: E[4] f64 = reshape %13 [4]
%15: E[8] f64 = concat dim=0 %14, %9"""),
    ],
    "postpone-whole": [
        ("a sum of products with shared data", """
%12: unit[4] f64 = input a
%13: E[4] f64 = mul %9, %12
%14: E[] f64 = reduce.sum %13 [0]"""),
        ("a product of a function, with a constant", """
%12: E[] f64 = const 0.5
%13: E[4] f64 = mul %9, %12
%14: E[4] f64 = maximum %13, %9
%15: E[3] f64 = matmul %14, %7"""),
        ("two values, one through a reshape", """
%12: V[2, 2] f64 = input y
%13: E[2, 2] f64 = pull %12, %2
%14: E[4] f64 = reshape %13 [4]
%15: E[4] f64 = mul %9, %14
%16: E[] f64 = reduce.sum %15 [0]"""),
    ],
    "split-linear": [
        ("concatenation", """
%12: E[2] f64 = input y
%13: E[2] f64 = input z
%14: E[4] f64 = concat dim=0 %12, %13
%15: E[3] f64 = matmul %14, %7"""),
        ("difference", """
%12: E[4] f64 = sub %9, %10
%13: E[3] f64 = matmul %12, %7"""),
        ("gradient of the weight", """
%12: E[8] f64 = concat dim=0 %9, %10
%13: unit[4, 8] f64 = gram %6, %12"""),
        ("slice of a product", """
%12: E[3] f64 = matmul %6, %7
%13: E[1] f64 = slice %12 dim=0 1:3:2"""),
        ("feature sum of a concatenation", """
%12: unit[2] f64 = input y
%13: E[6] f64 = concat dim=0 %12, %6
%14: E[1] f64 = reduce.sum %13 [0] keepdim"""),
    ],
    "split-products": [
        ("scores of both ends", """
%12: unit[8] f64 = input att
%13: E[8] f64 = concat dim=0 %9, %10
%14: E[8] f64 = mul %13, %12
%15: E[] f64 = reduce.sum %14 [0]"""),
        ("scores of heads, of three parts", """
%12: unit[2, 6] f64 = input att
%13: E[2, 2] f64 = reshape %9 [2, 2]
%14: E[2, 2] f64 = reshape %10 [2, 2]
%15: E[2, 2] f64 = reshape %6 [2, 2]
%16: E[2, 6] f64 = concat dim=1 %13, %14, %15
%17: E[2, 6] f64 = mul %16, %12
%18: E[2, 6] f64 = neg %17
%19: E[2, 1] f64 = reduce.sum %18 [1] keepdim"""),
        ("a quotient, and a concatenation in both factors", """
%12: E[8] f64 = concat dim=0 %9, %10
%13: E[8] f64 = div %12, %12
%14: E[] f64 = reduce.sum %13 [0]"""),
        ("a part of no columns, in both factors", """
%12: E[0] f64 = input y
%13: E[8] f64 = concat dim=0 %9, %12, %10
%14: E[8] f64 = concat dim=0 %10, %12, %6
%15: E[8] f64 = mul %13, %14
%16: E[] f64 = reduce.sum %15 [0]"""),
        ("gradient of the vector", """
%12: E[8] f64 = concat dim=0 %9, %10
%13: E[1] f64 = input g
%14: E[8] f64 = mul %13, %12
%15: E -> unit = tounit E
%16: unit[8] f64 = push.sum %14, %15"""),
        ("rows next to shared data", """
%12: unit[2] f64 = input y
%13: E[6] f64 = concat dim=0 %12, %6
%14: E[1] f64 = input g
%15: E[6] f64 = mul %13, %14
%16: W[6] f64 = push.sum %15, %3"""),
    ],
    "slice-products": [
        ("a part of a gradient", """
%12: unit[8] f64 = input att
%13: E[1] f64 = input g
%14: E[8] f64 = mul %13, %12
%15: E[3] f64 = slice %14 dim=0 1:7:2"""),
        ("of a broadcast number, divided", """
%12: unit[2, 8] f64 = input att
%13: E[] f64 = input g
%14: E[2, 8] f64 = div %13, %12
%15: E[2, 8] f64 = neg %14
%16: E[2, 4] f64 = slice %15 dim=1 4:8:1"""),
    ],
    "row-totals": [
        ("gradient of a vector", """
%12: E[1] f64 = input g
%13: E[4] f64 = mul %9, %12
%14: E -> unit = tounit E
%15: unit[4] f64 = push.sum %13, %14"""),
        ("an infinite value in rows without edges", """
%12: E[4] f64 = div %6, %10
%13: E -> unit = tounit E
%14: unit[4] f64 = push.sum %12, %13"""),
    ],
    "totals": [
        ("gradient of a bias", """
%12: E -> unit = tounit E
%13: unit[4] f64 = push.sum %6, %12"""),
    ],
    "pull-scale": [
        ("a product", """
%12: V[] f64 = input s
%13: V[4] f64 = mul %4, %12
%14: E[4] f64 = pull %13, %2"""),
        ("a quotient, its divisor a column", """
%12: W[1] f64 = input s
%13: W[4] f64 = div %5, %12
%14: E[4] f64 = pull %13, %3"""),
    ],
    "reciprocal": [
        ("each row's own", """
%12: E[4] f64 = div %6, %10"""),
        ("shared data", """
%12: E[4] f64 = div %6, %8"""),
        ("through a reshape", """
%12: W[2] f64 = input y
%13: E[2] f64 = pull %12, %3
%14: E[2, 1] f64 = reshape %13 [2, 1]
%15: E[2, 4] f64 = div %6, %14"""),
    ],
    "join-reshapes": [
        ("two values and a number", """
%12: E[2, 2] f64 = reshape %6 [2, 2]
%13: E[2, 2] f64 = reshape %9 [2, 2]
%14: unit[] bool = input c
%15: E[2, 2] f64 = where %14, %12, %13"""),
        ("a dim of size 1", """
%12: E[4, 1] f64 = reshape %6 [4, 1]
%13: E[4, 1] f64 = mul %8, %12"""),
        ("cast", """
%12: E[2, 2] f64 = reshape %6 [2, 2]
%13: E[2, 2] f32 = cast %12 f32"""),
    ],
    "narrow-early": [
        ("gathered", """
%12: V[4] f32 = input y
%13: E[4] f32 = pull %12, %2
%14: E[4] bf16 = cast %13 bf16"""),
        ("side by side", """
%12: V[4] f32 = input y
%13: E[4] f32 = pull %12, %2
%14: E[4] f32 = input z
%15: E[8] f32 = concat dim=0 %13, %14
%16: E[8] bf16 = cast %15 bf16"""),
    ],
    "unbroadcast": [
        ("beside a wide one", """
%12: E[1] f64 = input s
%13: E[4] f64 = broadcast %12 [4]
%14: E[4] f64 = mul %13, %6"""),
    ],
}  # fmt: skip
"""Rule -> titles and texts that follow HEAD. The rule applies to the last node."""

REFUSED = {
    "join-parts": [
        ("parts in another order", """
%12: D[4] f64 = join %6, %9 D
%13: D[4] f64 = exp %12
%14: E[4] f64 = part %13 of=[E, E] at=1
%15: E[4] f64 = part %13 of=[E, E] at=0
%16: D[4] f64 = join %14, %15 D"""),
        ("two addends that may both differ from zero", """
%12: W[4] f64 = const 0.0
%13: U[4] f64 = join %4, %12 U
%14: U[4] f64 = join %4, %5 U
%15: U[4] f64 = add %13, %14"""),
    ],
    "copies-apart": [
        ("one matrix for all rows", """
%12: D[4] f64 = join %6, %9 D
%13: D[3] f64 = matmul %12, %7"""),
        ("segments of several spaces", """
%12: U[4] f64 = join %4, %5 U
%13: V[] i64 = input graph
%14: W[] i64 = input graph2
%15: U[] i64 = join %13, %14 U
%16: U -> V = map %15 to V
%17: V[4, 3] f64 = input matrices
%18: U[3] f64 = matmul %12, %17, %16"""),
    ],
    "join-orders": [
        ("a key that stands in no order", """
%12: E[] f64 = reduce.sum %6 [0]
%13: E[] i64 = order %12 descending=[true]
%14: E -> E = map %13 to E
%15: E[] i64 = order %1 descending=[false]
%16: E -> E = map %15 to E
%17: E[] i64 = pull %13, %16"""),
        ("rows that stand in no order", """
%12: E[] f64 = reduce.sum %6 [0]
%13: E[] i64 = order %12 descending=[true]
%14: E -> E = map %13 to E
%15: E[] i64 = pull %1, %14
%16: E[] i64 = order %15 descending=[false]
%17: E -> E = map %16 to E
%18: E[4] f64 = pull %6, %17"""),
        ("keys of which one stands in no order", """
%12: E[] f64 = reduce.sum %6 [0]
%13: E[] i64 = order %12 descending=[true]
%14: E -> E = map %13 to E
%15: E[] i64 = pull %1, %14
%16: E[] i64 = order %15, %0 descending=[false, false]
%17: E -> E = map %16 to E
%18: E[] i64 = pull %13, %17"""),
    ],
    "join-selects": [
        ("two conditions", """
%12: E[] bool = gt %0, %1
%13: E[] bool = gt %1, %0
%14: unit[] f64 = const 0.0
%15: E[4] f64 = where %12, %6, %14
%16: E[4] f64 = where %13, %14, %9
%17: E[4] f64 = add %15, %16"""),
        ("both for the same rows", """
%12: E[] bool = gt %0, %1
%13: unit[] f64 = const 0.0
%14: E[4] f64 = where %12, %6, %13
%15: E[4] f64 = where %12, %9, %13
%16: E[4] f64 = add %14, %15"""),
        ("a factor that may be infinite", """
%12: E[] bool = gt %0, %1
%13: unit[] f64 = const 0.0
%14: E[4] f64 = where %12, %6, %13
%15: E[4] f64 = where %12, %13, %9
%16: E[4] f64 = mul %8, %15
%17: E[4] f64 = add %14, %16"""),
        ("an infinite constant", """
%12: E[] bool = gt %0, %1
%13: unit[] f64 = const 0.0
%14: unit[] f64 = const inf
%15: E[4] f64 = where %12, %6, %13
%16: E[4] f64 = where %12, %13, %9
%17: E[4] f64 = mul %14, %16
%18: E[4] f64 = add %15, %17"""),
    ],
    "common-factor": [
        ("nothing in common", """
%12: E[] bool = gt %0, %1
%13: E[4] f64 = where %12, %9, %10"""),
        ("a factor and its inverse", """
%12: E[] bool = gt %0, %1
%13: E[4] f64 = mul %9, %6
%14: E[4] f64 = div %10, %6
%15: E[4] f64 = where %12, %13, %14"""),
        ("integers", """
%12: E[] bool = gt %0, %1
%13: E[] i64 = mul %0, %1
%14: E[] i64 = where %12, %13, %0"""),
    ],
    "compose-maps": [
        ("maxima of sums", """
%12: W -> unit = tounit W
%13: unit[4] f64 = push.max %11, %12"""),
        ("rows without edges are not 0", """
%12: W[] i64 = input graph
%13: W -> V = map %12 to V
%14: W[4] f64 = push.sum %6, %3 empty=1.0
%15: V[4] f64 = push.sum %14, %13"""),
    ],
    "fold-constants": [
        ("zero minus", """
%12: unit[] f64 = const 0.0
%13: E[4] f64 = sub %12, %6"""),
        ("one that widens", """
%12: unit[2, 1] f64 = const 1.0
%13: E[2, 4] f64 = mul %6, %12"""),
        ("one on rows, times shared data", """
%12: E[] f64 = const 1.0
%13: E[] f64 = mul %12, %8"""),
    ],
    "distribute": [
        ("maximum", """
%12: E[4] f64 = mul %10, %6
%13: E[4] f64 = add %12, %9
%14: W[4] f64 = push.max %13, %3"""),
        ("no part gains", """
%12: E[4] f64 = add %6, %9
%13: W[4] f64 = push.sum %12, %3"""),
        ("a sum that divides", """
%12: E[4] f64 = mul %10, %6
%13: E[4] f64 = add %12, %9
%14: E[4] f64 = div %6, %13
%15: W[4] f64 = push.sum %14, %3"""),
    ],
    "factor": [
        ("maximum", """
%12: E[4] f64 = mul %6, %10
%13: W[4] f64 = push.max %12, %3"""),
        ("another map", """
%12: E[4] f64 = mul %6, %9
%13: W[4] f64 = push.sum %12, %3"""),
        ("rows without edges are not 0", """
%12: E[4] f64 = mul %6, %10
%13: W[4] f64 = push.sum %12, %3 empty=-1.0"""),
        ("a sum, no product", """
%12: E[4] f64 = add %6, %10
%13: W[4] f64 = push.sum %12, %3"""),
        ("a total", """
%12: E -> unit = tounit E
%13: E[4] f64 = mul %6, %8
%14: unit[4] f64 = push.sum %13, %12"""),
    ],
    "feature-sum": [
        ("a maximum of features", """
%12: E[4] f64 = mul %10, %9
%13: E[] f64 = reduce.max %12 [0]
%14: W[] f64 = push.sum %13, %3"""),
        ("a sum that is broadcast", """
%12: E[4] f64 = mul %10, %9
%13: E[1] f64 = reduce.sum %12 [0] keepdim
%14: E[4] f64 = mul %13, %6
%15: W[4] f64 = push.sum %14, %3"""),
        ("nothing of the row's own", """
%12: E[4] f64 = mul %6, %9
%13: E[] f64 = reduce.sum %12 [0]
%14: W[] f64 = push.sum %13, %3"""),
        ("a sum that divides", """
%12: E[4] f64 = mul %10, %9
%13: E[] f64 = reduce.sum %12 [0]
%14: E[] f64 = input a
%15: E[] f64 = div %14, %13
%16: W[] f64 = push.sum %15, %3"""),
    ],
    "injective-maps": [
        ("any index", """
%12: E[4] f64 = pull %11, %3"""),
        ("each column sorted by itself", """
%12: V[1] f64 = slice %4 dim=0 0:1:1
%13: V[1] i64 = call aten.argsort.default(%12)
%14: V[] i64 = reshape %13 []
%15: V -> V = map %14 to V
%16: V[4] f64 = push.sum %4, %15
%17: V[4] f64 = pull %16, %15"""),
    ],
    "linear-into-push": [
        ("maximum", """
%12: W[4] f64 = push.max %6, %3
%13: W[3] f64 = matmul %12, %7"""),
        ("rows without edges are not 0", """
%12: W[4] f64 = push.sum %6, %3 empty=1.0
%13: unit[4, 4] f64 = gram %5, %12"""),
    ],
    "narrow-sums": [
        ("as many features", """
%12: W[4] f64 = push.sum %9, %3
%13: unit[4, 4] f64 = input w44
%14: W[4] f64 = matmul %12, %13"""),
        ("more features", """
%12: V[4] f64 = input y
%13: E[4] f64 = pull %12, %2
%14: W[4] f64 = push.sum %13, %3
%15: W[5] f64 = input g
%16: unit[4, 5] f64 = gram %14, %15"""),
        ("a factor for each feature", """
%12: E[4] f64 = mul %9, %6
%13: W[4] f64 = push.sum %12, %3
%14: E[4] f64 = pull %13, %3
%15: E[4] f64 = mul %14, %6
%16: E[3] f64 = matmul %15, %7"""),
        ("a maximum", """
%12: W[4] f64 = push.max %9, %3
%13: W[3] f64 = matmul %12, %7"""),
        ("no sum", "%12: E[3] f64 = matmul %9, %7"),
        ("two products with different weights", """
%12: V[3] f64 = input y
%13: unit[3, 4] f64 = input a
%14: unit[3, 4] f64 = input c
%15: V[4] f64 = matmul %12, %13
%16: V[4] f64 = matmul %12, %14
%17: E[4] f64 = pull %15, %2
%18: E[4] f64 = pull %16, %2
%19: W[4] f64 = push.sum %17, %3
%20: W[4] f64 = push.sum %18, %3
%21: W[4] f64 = add %19, %20"""),
        ("weights of types", """
%12: W[] i64 = input graph
%13: W -> V = map %12 to V
%14: V[4, 3] f64 = input matrices
%15: W[4] f64 = push.sum %9, %3
%16: W[3] f64 = matmul %15, %14, %13"""),
    ],
    "linear-out-of-push": [
        ("maximum", """
%12: E[3] f64 = matmul %6, %7
%13: W[3] f64 = push.max %12, %3"""),
        ("spread shared data", """
%12: E -> unit = tounit E
%13: unit[4] f64 = input y
%14: E[4] f64 = pull %13, %12
%15: unit[4, 4] f64 = gram %14, %6"""),
    ],
    "scale-out-of-linear": [
        ("a number a feature", """
%12: unit[4] f64 = input s
%13: V[4] f64 = mul %4, %12
%14: V[3] f64 = matmul %13, %7"""),
        ("rows divide a number", """
%12: V[1] f64 = input s
%13: V[4] f64 = div %12, %4
%14: V[3] f64 = matmul %13, %7"""),
        ("rows of one number that are widened", """
%12: V[1] f64 = input s
%13: unit[4] f64 = input y
%14: V[4] f64 = mul %13, %12
%15: V[3] f64 = matmul %14, %7"""),
    ],
    "postpone": [
        ("two maps", "%12: E[4] f64 = add %9, %10"),
        ("of the edges", "%12: E[3] f64 = matmul %6, %7"),
        ("shared data", """
%12: E -> unit = tounit E
%13: unit[4] f64 = input y
%14: E[4] f64 = pull %13, %12
%15: E[4] f64 = tanh %14"""),
    ],
    "postpone-whole": [
        ("two maps", """
%12: E[4] f64 = mul %9, %10
%13: E[] f64 = reduce.sum %12 [0]"""),
        ("data of edges", """
%12: E[4] f64 = mul %9, %6
%13: E[] f64 = reduce.sum %12 [0]"""),
        ("pulled rows alone, which is postpone's", "%12: E[] f64 = reduce.sum %9 [0]"),
    ],
    "split-linear": [
        ("shared data beside rows", """
%12: unit[2] f64 = input y
%13: E[2] f64 = input z
%14: E[4] f64 = concat dim=0 %12, %13
%15: E[3] f64 = matmul %14, %7"""),
        ("a part that is broadcast", """
%12: E[4] f64 = add %6, %8
%13: E[3] f64 = matmul %12, %7"""),
        ("a product of features", """
%12: E[8] f64 = concat dim=0 %6, %9
%13: E[] f64 = reduce.mul %12 [0]"""),
        ("along another dim", """
%12: E[2, 2] f64 = input y
%13: E[4, 2] f64 = concat dim=0 %12, %12
%14: E[4] f64 = reduce.sum %13 [1]"""),
    ],
    "split-products": [
        ("a product of features", """
%12: E[8] f64 = concat dim=0 %6, %9
%13: unit[8] f64 = input att
%14: E[8] f64 = mul %12, %13
%15: E[] f64 = reduce.mul %14 [0]"""),
        ("along another dim", """
%12: E[2, 2] f64 = input y
%13: E[4, 2] f64 = concat dim=0 %12, %12
%14: E[4, 2] f64 = mul %13, %8
%15: E[4] f64 = reduce.sum %14 [1]"""),
        ("the largest", """
%12: E[8] f64 = concat dim=0 %6, %9
%13: E[8] f64 = mul %12, %8
%14: W[8] f64 = push.max %13, %3"""),
    ],
    "slice-products": [
        ("rows that are sliced", """
%12: E[4] f64 = mul %6, %9
%13: E[2] f64 = slice %12 dim=0 0:2:1"""),
    ],
    "row-totals": [
        ("maximum", """
%12: E -> unit = tounit E
%13: E[4] f64 = mul %9, %6
%14: unit[4] f64 = push.max %13, %12"""),
        ("data of edges", """
%12: E -> unit = tounit E
%13: E[4] f64 = mul %6, %8
%14: unit[4] f64 = push.sum %13, %12"""),
    ],
    "totals": [
        ("maximum", """
%12: E -> unit = tounit E
%13: unit[4] f64 = push.max %6, %12"""),
        ("no rows' sums", """
%12: E -> unit = tounit E
%13: W[4] f64 = push.max %9, %3
%14: unit[4] f64 = push.sum %9, %12"""),
    ],
    "pull-scale": [
        ("of whole rows", """
%12: V[4] f64 = mul %4, %4
%13: E[4] f64 = pull %12, %2"""),
        ("by shared data", """
%12: V[4] f64 = mul %4, %8
%13: E[4] f64 = pull %12, %2"""),
        ("a number by rows", """
%12: V[] f64 = input s
%13: V[4] f64 = div %12, %4
%14: E[4] f64 = pull %13, %2"""),
    ],
    "reciprocal": [
        ("of the edges", "%12: E[4] f64 = div %10, %6"),
        ("of shared data", "%12: E[4] f64 = div %8, %10"),
        ("a product", "%12: E[4] f64 = mul %6, %10"),
    ],
    "join-reshapes": [
        ("of different shapes beneath", """
%12: E[1, 4] f64 = input y
%13: E[2, 2] f64 = reshape %12 [2, 2]
%14: E[2, 2] f64 = reshape %6 [2, 2]
%15: E[2, 2] f64 = add %13, %14"""),
        ("beside a row that is not reshaped", """
%12: E[1, 4] f64 = reshape %6 [1, 4]
%13: E[1, 4] f64 = add %12, %9"""),
        ("a reshape that is widened", """
%12: E[4, 1] f64 = reshape %6 [4, 1]
%13: E[1, 4] f64 = reshape %6 [1, 4]
%14: E[4, 4] f64 = add %12, %13"""),
    ],
    "narrow-early": [
        ("to a wider type", """
%12: V[4] f32 = input y
%13: E[4] f32 = pull %12, %2
%14: E[4] f64 = cast %13 f64"""),
        ("computed on edges", """
%12: E[4] f32 = cast %6 f32
%13: E[4] bf16 = cast %12 bf16"""),
    ],
    "unbroadcast": [
        ("nothing else is as wide", """
%12: E[2, 4] f64 = broadcast %6 [2, 4]
%13: E[2, 4] f64 = mul %12, %9"""),
    ],
}  # fmt: skip
