"""Message passing written as loops over edges and nodes: Hector's programming interface (docs/loops.md).

K. Wu et al., "Hector: An Efficient Programming and Compilation Framework for Implementing Relational Graph Neural
Networks in GPU Architectures", ASPLOS 2024, section 3.2.
"""

from graphweave.loops.functions import (
    concat,
    dot_prd,
    dot_prod,
    exp,
    leakyrelu,
    linear,
    maximum,
    mean,
    minimum,
    outer_prod,
    relu,
    reshape,
    sigmoid,
    sum,
    tanh,
    where,
)
from graphweave.loops.run import compile
from graphweave.loops.view import TypedEdges

__all__ = [
    "TypedEdges",
    "compile",
    "concat",
    "dot_prd",
    "dot_prod",
    "exp",
    "leakyrelu",
    "linear",
    "maximum",
    "mean",
    "minimum",
    "outer_prod",
    "relu",
    "reshape",
    "sigmoid",
    "sum",
    "tanh",
    "where",
]
