"""A process of `bench.dgl_scripts`: runs one script of DGL's examples from its first line, an epoch when it is asked.

The script's text is run unchanged but for one line before the line that makes the optimizer, which DGL's process needs,
too, to hand out the weights: `model = graphweave.compile(model)`. Each `optimizer.step()` ends an epoch: the script
stops there until the next question. So an epoch is all that the script does between two of them, its validation too.
"""

from __future__ import annotations

import argparse
import ast
import gc
import queue
import sys
import threading
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from bench.dgl_scripts_cases import SCRIPTS
from bench.dgl_scripts_data import put_data
from bench.turns import serve

_PREPARED = "prepared_by_the_benchmark"
"""Name of the function that the added line calls."""


class Epochs:
    """Lets the script's thread run a number of epochs, and says how long they took."""

    def __init__(self) -> None:
        self._allowed: queue.Queue[int] = queue.Queue()
        self._done: queue.Queue[float | Exception] = queue.Queue()
        self._left, self._since = 0, 0.0

    def run(self, count: int) -> float:
        """Seconds of `count` epochs. Called by the thread that answers questions."""
        self._allowed.put(count)
        seconds = self._done.get()
        if isinstance(seconds, Exception):
            raise seconds
        return seconds

    def begin(self) -> None:
        """Waits for the first question. Called by the script's thread before its first line."""
        self._left = self._allowed.get()
        self._since = time.perf_counter()

    def step(self, *ignored: Any) -> None:
        """An epoch is over. Called by the optimizer, in the script's thread."""
        self._left -= 1
        if not self._left:
            self._done.put(time.perf_counter() - self._since)
            self._left = self._allowed.get()
            gc.collect()
            self._since = time.perf_counter()

    def end(self, problem: Exception) -> None:
        """The script is over, and this is the answer to every further question."""
        self._done.put(problem)
        while True:
            self._allowed.get()
            self._done.put(problem)


def main_module(file: Path, names: Mapping[str, Any]) -> dict[str, Any]:
    """The names of a module that stands for the script as `__main__`, where PyTorch's compiler looks names up."""
    module = ModuleType("__main__")
    module.__dict__.update({"__file__": str(file), **names})
    sys.modules["__main__"] = module
    return module.__dict__


def with_line(text: str, name: str) -> ast.Module:
    """The script with `model = prepared(model)` before the statement that gives `model.parameters()` to an optimizer.

    ValueError if there is no such statement.
    """
    tree = ast.parse(text, name)
    found = False
    for node in list(ast.walk(tree)):
        body = getattr(node, "body", None)
        statements: list[ast.stmt] = body if isinstance(body, list) else []
        for at, statement in reversed(list(enumerate(statements))):
            model = _trained(statement)
            if model:
                line = ast.parse(f"{model} = {_PREPARED}({model})").body
                statements[at:at] = line
                found = True
    if not found:
        raise ValueError(f"{name} makes no optimizer of model.parameters()")
    return ast.fix_missing_locations(tree)


def _trained(statement: ast.stmt) -> str:
    """The variable whose parameters a statement gives to an optimizer; "" if it does not."""
    if not (isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Call)):
        return ""
    for argument in statement.value.args:
        match argument:
            case ast.Call(func=ast.Attribute(value=ast.Name(id=model), attr="parameters")):
                return model
    return ""


class Run:
    """The script, its weights and its losses."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.epochs, self.losses = options, Epochs(), list[float]()
        self.script = SCRIPTS[options.script]

    def prepared(self, model: nn.Module) -> Any:
        """The model as the script trains it. DGL's process writes its weights, the others take them."""
        path = self.options.weights
        if self.options.system == "dgl":
            torch.save(model.state_dict(), path)
            return model
        model.load_state_dict(torch.load(path, weights_only=True))
        if self.options.system == "door":
            return model
        import graphweave

        return graphweave.compile(model)

    def script_thread(self) -> None:
        options = self.options
        file = options.examples / self.script.path
        if options.system != "dgl":
            import graphweave.dgl

            graphweave.dgl.install()
        with np.load(options.case) as arrays:
            put_data(self.script.kind, {name: torch.from_numpy(arrays[name]) for name in arrays.files})
        code = compile(with_line(file.read_text(), str(file)), str(file), "exec")
        sys.argv, sys.path[:0] = [str(file), *self.script.arguments], [str(file.parent)]
        register_optimizer_step_post_hook(self.epochs.step)
        if options.losses:
            _without_chance()
            self._record_losses()
        torch.manual_seed(0)
        self.epochs.begin()
        try:
            exec(code, main_module(file, {_PREPARED: self.prepared}))
            self.epochs.end(RuntimeError("the script ended before the measurement"))
        except Exception as problem:  # what the script raises is a result of the benchmark
            self.epochs.end(problem)

    def _record_losses(self) -> None:
        backward = Tensor.backward

        def recording(loss: Tensor, *arguments: Any, **options: Any) -> None:
            self.losses.append(float(loss.detach()))
            backward(loss, *arguments, **options)

        Tensor.backward = recording  # type: ignore[method-assign,assignment]

    def turn(self, steps: int) -> float:
        """Mean seconds of an epoch. A script of few epochs gets fewer than `steps`, so that they last."""
        count = max(1, min(steps, self.script.epochs // self.options.turns - 1))
        gc.collect()
        gc.disable()
        try:
            return self.epochs.run(count) / count
        finally:
            gc.enable()

    def first(self) -> dict[str, Any]:
        seconds = self.epochs.run(1)
        packages = ("dgl", "torch", "numpy") if self.options.system == "dgl" else ("torch", "numpy")
        out = {"first": seconds, "versions": {name: version(name) for name in packages}}
        if self.options.system == "dgl":
            return out
        import graphweave

        return {**out, "counters": graphweave.counters()}

    def first_losses(self, count: int) -> list[float]:
        self.epochs.run(count)
        return self.losses[:count]


def _without_chance() -> None:
    """Dropout keeps everything, so that two systems with other random numbers have the same losses."""
    nn.functional.dropout = lambda input, p=0.5, training=True, inplace=False: input
    torch.bernoulli = lambda input, **options: torch.ones_like(input)  # type: ignore[assignment]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("script", choices=SCRIPTS)
    parser.add_argument("system", choices=("dgl", "door", "compiled"))
    parser.add_argument("--examples", type=Path, required=True, help="folder `examples` of a checkout of DGL")
    parser.add_argument("--case", type=Path, required=True, help=".npz with the graph")
    parser.add_argument("--weights", type=Path, required=True, help="file of the initial weights")
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--turns", type=int, default=30, help="turns for which the script's epochs must last")
    parser.add_argument("--losses", action="store_true", help="record losses, without dropout")
    options = parser.parse_args(argv)
    warnings.simplefilter("ignore")
    torch.set_num_threads(options.threads)
    run = Run(options)
    handlers: Mapping[str, Callable[..., Any]] = {
        "first": run.first, "turn": run.turn, "losses": run.first_losses,
    }  # fmt: skip
    threading.Thread(target=serve, args=(handlers,), daemon=True).start()
    run.script_thread()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
