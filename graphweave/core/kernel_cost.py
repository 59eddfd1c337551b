"""The bytes and operations of a kernel, and the least time that a machine needs for them."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Rates:
    """Bytes per second of a machine's memory, and its flops per second in matrix products."""

    bandwidth: float
    products: float

    def seconds(self, moved: int, flops: int) -> float:
        """The least time of work that moves so many bytes and computes so many flops."""
        return max(moved / self.bandwidth, flops / self.products)


@dataclass(frozen=True, slots=True)
class KernelCost:
    """One run of the kernel `name`. `compulsory`, `gather` and `flops` are those of `ir.loop.traffic.Traffic`.

    `bound_seconds` is the least time that the machine needs for the compulsory bytes or the flops, whichever takes
    longer; None if the machine has not been measured. `seconds` is the time that was measured; only `graphweave
    profile` measures it.
    """

    name: str
    compulsory: int
    gather: int
    flops: int
    bound_seconds: float | None = None
    seconds: float | None = None

    def bounded_by(self, rates: Rates) -> KernelCost:
        """The cost with its bound on a machine of these rates."""
        return replace(self, bound_seconds=rates.seconds(self.compulsory, self.flops))
