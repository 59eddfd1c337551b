"""`graphweave.jax` where JAX is not installed."""

from __future__ import annotations

import importlib
import sys

import pytest


def test_the_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("graphweave.jax")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "jax", None)
    with pytest.raises(ImportError, match=r"graphweave\.jax needs JAX. Install it: pip install graphweave\[jax\]\."):
        importlib.import_module("graphweave.jax")
