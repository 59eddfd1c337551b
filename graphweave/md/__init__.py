"""Molecular dynamics with compiled and exported potentials, by ASE (docs/forces.md)."""

try:
    import ase as _ase  # noqa: F401
except ImportError as error:
    raise ImportError("graphweave.md needs ASE. Install it: pip install graphweave[md].") from error

from graphweave.md.calculator import PotentialCalculator

__all__ = ["PotentialCalculator"]
