"""`graphweave.jax` where JAX is not installed."""

from __future__ import annotations

import subprocess
import sys


def test_the_error_says_how_to_install_it() -> None:
    code = "import sys; sys.modules['jax'] = None; import graphweave.jax"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "graphweave.jax needs JAX. Install it: pip install graphweave[jax]." in done.stderr
