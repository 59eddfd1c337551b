"""Is what a process computed right: against eager PyG, and where float32 is in doubt, by eager PyG in float64."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bench.check import Result, error_against, worst_error
from bench.turns import Player, PlayerLost

TOLERANCE = 1e-4
"""Relative error of loss and gradients against eager above which a system is wrong.

Looser than the tests' 1e-5: a hub adds 13,000 float32 terms, and a weight gradient 169,343.
"""


def read_result(path: Path) -> Result:
    """Arrays that a process wrote: `out` (the loss, or a kernel's result), all others gradients by name."""
    with np.load(path) as arrays:
        tensors = {name: torch.from_numpy(arrays[name]) for name in arrays.files}
    return Result((tensors.pop("out"),), dict(tensors))


def result_of(player: Player, question: str = "result") -> Result:
    """One more step of the process, with its numbers."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "result.npz"
        player.ask(question, path=str(path))
        return read_result(path)


class Judge:
    """`eager(wide)` starts the process of eager PyG, in float64 where `wide`; it is started when first needed."""

    def __init__(self, eager: Callable[[bool], Player], want: Result | None = None, question: str = "result") -> None:
        """`want` is eager's float32 result where that is known; `question` is what eager is asked for it."""
        self._eager, self._want, self._question = eager, want, question
        self._exact: Result | None = None

    def verdict(self, got: Result) -> dict[str, Any]:
        """Errors, and `status`: "ok" or how it is wrong. Gradients that `got` does not know are not compared.

        Wrong is an error above the tolerance that is also above 4 times eager's own, measured against float64.
        """
        try:
            self._want = self._want or self._run(wide=False)
            want = _same_names(self._want, got)
            error, where = worst_error(got, want)
            answer = {"status": "ok", "error": error, "gradients_compared": len(want.grads)}
            if error <= TOLERANCE:
                return answer
            self._exact = self._exact or self._run(wide=True)
        except PlayerLost as problem:
            return {"status": f"eager PyG cannot judge: {problem}"}
        exact = _same_names(self._exact, got)
        own, eager = error_against(got, exact), error_against(want, exact)
        answer.update(error_in_float64=own, eager_error_in_float64=eager)
        if own > max(TOLERANCE, 4 * eager):
            answer["status"] = f"wrong: {where} is off by {error:.1e}"
        return answer

    def _run(self, *, wide: bool) -> Result:
        player = self._eager(wide)
        try:
            return result_of(player, self._question)
        finally:
            player.close()


def _same_names(want: Result, got: Result) -> Result:
    return Result(want.outputs, {name: grad for name, grad in want.grads.items() if name in got.grads})
