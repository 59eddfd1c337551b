"""The catalogue of errors. Every message says what was expected, what came (the value), and what to do."""

from __future__ import annotations

from dataclasses import dataclass


class GraphweaveError(Exception):
    """Base of every error this package raises on purpose."""


class SettingsError(GraphweaveError, ValueError):
    """An environment variable or override has a value that cannot be used; the message names the variable."""


class ScheduleError(SettingsError):
    """A schedule that is not possible; the message names the field, the reason and what to do."""


class DataError(GraphweaveError, ValueError):
    """A tensor, graph or file does not have the shape, dtype or content that was asked for."""


class RanksError(GraphweaveError):
    """The user has to know this of several ranks of a job before their work begins: rank 0 says it once."""


class IndexRangeError(GraphweaveError, IndexError):
    """An index tensor points outside its rows. Raised before anything is read or written through the index.

    `said` is what happened, `index` the tensor. `told` gives the same error with what the user calls the index
    and the line that uses it.
    """

    def __init__(self, said: str, *, index: object = None, what: str = "", where: str = "", do: str = "") -> None:
        used = f" It is used at {where}." if where else ""
        super().__init__(f"{what}{': ' if what else ''}{said}{used}{' ' if do else ''}{do}")
        self.said, self.index, self.what, self.where, self.do = said, index, what, where, do

    def told(self, *, what: str = "", where: str = "") -> IndexRangeError:
        """The same error with the user's name for the index (`what`) and the line that uses it (`where`), if
        missing."""
        words, line = self.what or what, self.where or where
        return IndexRangeError(self.said, index=self.index, what=words, where=line, do=self.do)


class LoopError(GraphweaveError, ValueError):
    """A loop over edges or nodes (`graphweave.loops`) that cannot be run for all of them at once, or that uses
    something outside the language; the message ends with the user's line."""


@dataclass(frozen=True, slots=True)
class Reason:
    """Why something is no kernel. `parts` are words and, between them, the spaces, types and values that they speak
    of, which a report names as the user does."""

    parts: tuple[object, ...]

    def __str__(self) -> str:
        return "".join(map(str, self.parts))


NO_KERNEL = Reason(("no kernel computes it",))


class IRError(GraphweaveError, ValueError):
    """An ill-formed program of the message IR or the loop IR, or what no program says. The arguments are the parts of
    the reason."""

    def __init__(self, *parts: object) -> None:
        super().__init__(*parts)
        self.reason = Reason(parts)

    def __str__(self) -> str:
        return str(self.reason)


class DeclarationError(GraphweaveError, ValueError):
    """A declaration of an operator or a rule by `graphweave.extend` is wrong; the message says where."""


class RuleError(GraphweaveError):
    """A rule of `graphweave.extend.rule` failed, or returned what cannot replace the node that it was given."""


class ParseError(IRError):
    """Text that is not a program of the IR; the message carries the line."""


class ShardError(GraphweaveError):
    """A model, or a call of it, cannot run over the parts of a graph (`graphweave.distributed.shard`), as its numbers
    would not be those of the whole graph; the message names what stands in the way and the user's line."""


class ExportError(GraphweaveError):
    """A model cannot leave Python (`graphweave.export`); the message names what stands in the way and what to do."""


class VerifyError(GraphweaveError):
    """A compiled region disagrees with eager execution (`options={"verify": True}`)."""


class ToolchainError(GraphweaveError):
    """No usable C++ compiler. Frontends turn it into one warning and eager execution."""


class CompileError(GraphweaveError):
    """The C++ compiler, or Triton ahead of time, refused a kernel: a bug of the code generator, never of the user."""


class MemoryBudgetError(GraphweaveError, ValueError):
    """No form of a function fits into the memory that `options={"memory": ...}` allows; the message says the least."""


class DerivativeError(GraphweaveError, RuntimeError):
    """Gradients of gradients of a compiled function cannot be computed; the message names it and a way out."""


class CaptureError(GraphweaveError):
    """While a program was captured as a CUDA graph, it did something that a CUDA graph cannot hold.

    The user sees one warning, and the program's calls run without a CUDA graph.
    """


class CacheError(GraphweaveError):
    """The kernel cache could not be used, not even in a private temporary directory."""
