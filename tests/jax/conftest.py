"""Settings of JAX for the tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture
def float64() -> Iterator[None]:
    """JAX has arrays of 64 bits within the test."""
    import jax

    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", before)
