"""Checks the results of a process against eager PyG, and, if float32 may be the cause, against float64."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.check import Result, error_against, worst_error
from bench.turns import Player, PlayerLost
from bench.worker import read_result

TOLERANCE = 1e-4
"""Relative error of loss and gradients against eager above which a system is wrong.

Looser than the tests' 1e-5: a hub adds 13,000 float32 terms, and a weight gradient 169,343.
"""


def result_of(player: Player, question: str = "result") -> Result:
    """The result that a process gives for `question`, by default that of one more step."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "result.npz"
        player.ask(question, path=str(path))
        return read_result(path)


class Judge:
    """Judges results by those of eager PyG. `eager(wide)` starts its process, in float64 if `wide`, when needed."""

    def __init__(self, eager: Callable[[bool], Player], want: Result | None = None, question: str = "result") -> None:
        """`want` is eager's float32 result, if it is known; otherwise eager's process is asked `question` for it."""
        self._eager, self._want, self._question = eager, want, question
        self._exact: Result | None = None

    def verdict(self, got: Result) -> dict[str, Any]:
        """Errors, and `status`: "ok" or the error of a wrong result. Gradients that `got` lacks are not compared.

        A result is wrong if its error is above the tolerance and, against float64, above 4 times eager's own.
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
