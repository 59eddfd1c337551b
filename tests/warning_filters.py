"""Which warnings are errors in tests: all of them with the versions that `.ci/run` checks, else our own alone.

A newer release of another package may warn of anything, as PyTorch 2.14 does of `torch.jit.script`, which PyG calls at
import. That is for whoever moves the checks to that release, and must not keep others from running the tests.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

import pytest

from graphweave.core.versions import TESTED, is_release

KNOWN = (
    # PyG scripts a few classes at import.
    "ignore:`torch.jit:DeprecationWarning",
    # PyTorch's tracer reads gradients of inputs that are not leaves.
    "ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning",
    # PyTorch gives these warnings once a process, to whichever PyG layer makes the first sparse tensor.
    "ignore:Sparse invariant checks are implicitly disabled:UserWarning",
    "ignore:Sparse CSR tensor support is in beta state:UserWarning",
    # JAX warns of workers that are forked where it is loaded; they use PyTorch alone.
    r"ignore:os.fork\(\) was called:RuntimeWarning",
    # PyTorch warns of a slow spot of Python 3.13.0; PyG 2.8 and Triton 3.7 do what Python 3.15 will refuse.
    "ignore:Guards may run slower on Python 3.13.0:RuntimeWarning",
    "ignore:Failing to pass a value to the 'type_params' parameter:DeprecationWarning",
    "ignore:AnnAssign.__init__ missing 1 required positional argument:DeprecationWarning",
)
"""Warnings of others that are known, and need nothing."""

OURS = "error:graphweave. "
"""Our own warnings begin with "graphweave: " (`tests/pages/test_error_messages.py`)."""


def installed() -> dict[str, str]:
    """The versions of the packages of `TESTED` that are installed."""
    found = {}
    for package in TESTED:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def not_checked(versions: dict[str, str]) -> list[str]:
    """The packages whose release is not the one that `.ci/run` checks, as "torch 2.14.1 (checked: 2.13)"."""
    return [
        f"{package} {found} (checked: {TESTED[package].checked})"
        for package, found in versions.items()
        if not is_release(found, TESTED[package].checked)
    ]


def filters(versions: dict[str, str]) -> list[str]:
    """pytest's `filterwarnings` with these versions. A later line goes before an earlier one."""
    others = "default" if not_checked(versions) else "error"
    return [others, *KNOWN, OURS]


def add(config: pytest.Config) -> None:
    """Set the filters of the installed versions."""
    for line in filters(installed()):
        config.addinivalue_line("filterwarnings", line)


def header() -> list[str]:
    """What pytest's report begins with: whether warnings of other packages are no errors, and why."""
    other = ", ".join(not_checked(installed()))
    return [f"warnings of other packages are no errors, since .ci/run checks other releases: {other}"] if other else []
