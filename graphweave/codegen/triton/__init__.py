"""Loop IR -> Triton."""

from graphweave.codegen.triton.kernel import print_kernel, programs_of_a_row

__all__ = ["print_kernel", "programs_of_a_row"]
