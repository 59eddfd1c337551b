"""Loop IR -> Triton."""

from graphweave.codegen.triton.kernel import print_kernel

__all__ = ["print_kernel"]
