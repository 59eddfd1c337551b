"""Loop IR to C++: one translation unit with a plain C ABI (`print_kernel`)."""

from graphweave.codegen.cpp.kernel import print_kernel

__all__ = ["print_kernel"]
