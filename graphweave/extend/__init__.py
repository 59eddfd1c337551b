"""Extensions of the compiler: declarations of custom PyTorch operators, and rewrite rules (docs/extending.md)."""

from graphweave.extend import algebra
from graphweave.extend.along_maps import pull, push
from graphweave.extend.handle import Handle
from graphweave.extend.pointwise import pointwise
from graphweave.extend.rowwise import rowwise
from graphweave.extend.rules import rule

__all__ = ["Handle", "algebra", "pointwise", "pull", "push", "rowwise", "rule"]
