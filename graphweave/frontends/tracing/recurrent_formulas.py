"""A formula for PyTorch's recurrent layers, `nn.RNN`, `nn.LSTM` and `nn.GRU`, over few steps.

PyTorch's trace of an LSTM fails in training and gives other numbers in inference (2.13, by oneDNN's kernel). Its trace
of the others keeps states of shape [1, rows, hidden], of which no kernel is made. The formula computes the same row by
row: the weights multiply the inputs of all steps at once, as in PyTorch, and a step is one product of the state with a
matrix and arithmetic on rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import guard_or_false, has_static_value
from torch.nn.functional import dropout, linear
from torch.nn.utils.rnn import PackedSequence

MAX_UNROLLED_STEPS = 32
"""A layer is unrolled up to this many steps, counted over its stacked layers and directions. Each takes about half a
second to compile."""

_OF_PYTORCH: dict[str, Callable[..., object]] = {
    "RNN_TANH": torch.nn.RNN.forward,
    "RNN_RELU": torch.nn.RNN.forward,
    "LSTM": torch.nn.LSTM.forward,
    "GRU": torch.nn.GRU.forward,
}
"""PyTorch's own forward of each mode of a layer."""
_IN_EAGER_MODE = {mode: torch._dynamo.disable(forward) for mode, forward in _OF_PYTORCH.items()}
"""The same, breaking the graph."""

MAX_STEP_COUNTS = 3
"""Layers of the same sizes are unrolled for at most this many numbers of steps, where arguments decide that number."""

_step_counts: dict[tuple[Any, ...], set[int]] = {}
"""For each mode and sizes of a layer, the numbers of steps, decided by arguments, for which it was unrolled."""


def recurrent(self: Any, input: object, hx: Any = None) -> object:
    """The forward of a recurrent layer, unrolled. Over many steps, over numbers of steps that vary, and for packed or
    single sequences, the graph breaks and PyTorch's own forward runs. What stands for a tensor answers PyTorch's
    functions itself: a mailbox refuses them, and is then reduced in another way."""
    dim = 1 if self.batch_first else 0
    if not isinstance(input, Tensor | PackedSequence):
        return _OF_PYTORCH[self.mode](self, input, hx)
    if isinstance(input, PackedSequence) or input.dim() != 3 or not _unrolls(self, input, dim):
        return _IN_EAGER_MODE[self.mode](self, input, hx)
    first = hx if hx is None or self.mode == "LSTM" else (hx,)
    last: list[tuple[Tensor, ...]] = []
    for layer in range(self.num_layers):
        if layer and self.training and self.dropout:
            input = dropout(input, self.dropout)
        directions = []
        for suffix in ("", "_reverse") if self.bidirectional else ("",):
            state = _zeros(self, input, dim) if first is None else tuple(part[len(last)] for part in first)
            outputs, state = _one_direction(self, f"_l{layer}{suffix}", input, dim, state)
            last.append(state)
            directions.append(outputs)
        input = torch.cat(directions, dim=2) if self.bidirectional else directions[0]
    states = tuple(torch.stack(part) for part in zip(*last, strict=True))
    return input, states if self.mode == "LSTM" else states[0]


def _unrolls(self: Any, input: Tensor, dim: int) -> bool:
    """Whether a layer is unrolled. Where arguments decide the number of steps, each number that comes is compiled in,
    up to a few. Where data decides it, the answer is no."""
    steps: Any = input.size(dim)
    chains = self.num_layers * (2 if self.bidirectional else 1)
    if has_static_value(steps):
        return bool(steps * chains <= MAX_UNROLLED_STEPS)
    if not guard_or_false(steps * chains <= MAX_UNROLLED_STEPS):
        return False
    sizes = (self.mode, self.input_size, self.hidden_size, chains)
    counts = _counts_of(*sizes)
    if len(counts) == MAX_STEP_COUNTS:
        return any(steps == count for count in counts)
    _add_count(len(input.unbind(dim)), *sizes)  # a trace makes a number of a size that it unbinds
    return True


@torch._dynamo.assume_constant_result
def _counts_of(*sizes: object) -> tuple[int, ...]:
    return tuple(_step_counts.get(sizes, ()))


@torch._dynamo.assume_constant_result
def _add_count(steps: int, *sizes: object) -> None:
    _step_counts.setdefault(sizes, set()).add(steps)


def _zeros(self: Any, input: Tensor, dim: int) -> tuple[Tensor, ...]:
    """The first state of a layer that is given none: of zeros."""
    rows = input.size(1 - dim)
    hidden = input.new_zeros(rows, self.proj_size or self.hidden_size)
    return (hidden, input.new_zeros(rows, self.hidden_size)) if self.mode == "LSTM" else (hidden,)


def _one_direction(
    self: Any, k: str, input: Tensor, dim: int, state: tuple[Tensor, ...]
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """The outputs of all steps, and the last state. `k` ends the names of the parameters."""
    of_input, of_state = (getattr(self, f"bias_{of}{k}", None) for of in ("ih", "hh"))
    steps = linear(input, getattr(self, "weight_ih" + k), of_input).unbind(dim)
    backward = k.endswith("_reverse")
    outputs: list[Tensor] = []
    for x in reversed(steps) if backward else steps:
        state = _step(self.mode, x, linear(state[0], getattr(self, "weight_hh" + k), of_state), state)
        if self.proj_size:
            state = (linear(state[0], getattr(self, "weight_hr" + k)), state[1])
        outputs.append(state[0])
    return torch.stack(outputs[::-1] if backward else outputs, dim), state


def _step(mode: str, x: Tensor, h: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """The next state, from the products of the input and of the hidden state with the weights of all gates."""
    match mode:
        case "RNN_TANH":
            return ((x + h).tanh(),)
        case "RNN_RELU":
            return ((x + h).relu(),)
        case "LSTM":
            i, f, g, o = (x + h).chunk(4, dim=1)
            cell = f.sigmoid() * state[1] + i.sigmoid() * g.tanh()
            return o.sigmoid() * cell.tanh(), cell
        case "GRU":
            (x_r, x_z, x_n), (h_r, h_z, h_n) = x.chunk(3, dim=1), h.chunk(3, dim=1)
            z = (x_z + h_z).sigmoid()
            n = (x_n + (x_r + h_r).sigmoid() * h_n).tanh()
            return ((state[0] - n) * z + n,)
    raise AssertionError(mode)
