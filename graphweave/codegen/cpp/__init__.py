"""Loop IR to C++: one translation unit with a plain C ABI (`print_kernel`, and `shared_text` of what is compiled)."""

from graphweave.codegen.cpp.kernel import print_kernel
from graphweave.codegen.cpp.shared import SharedText, shared_text

__all__ = ["SharedText", "print_kernel", "shared_text"]
