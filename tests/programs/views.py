"""Random functions in which views, strides and writes to parts meet, on rows that are sliced, masked or transposed.

`random_views(seed)` is the text of a function of `x` [n, 4] and `i`, n numbers of rows of x, in plain PyTorch. It runs
for any n of 4 or more, if some numbers in `i` are 0 and some are not.
"""

from __future__ import annotations

import linecache
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

WIDTH = 4
"""Columns of `x`."""

_ROWS = (
    "x[1:]", "x[:-1]", "x[::2]", "x[i > 0]", "x[i == 0]", "x[i]", "x.index_select(0, i)", "x.flip(0)", "x * 1.5",
    "torch.zeros_like(x).index_add(0, i, x.sin())", "x[1:].tanh()", "x.narrow(0, 1, x.size(0) - 2)",
)  # fmt: skip
_NEW = ("v * 2", "v + 1", "v - 0.1", "v.sin()", "v.clone()", "v.exp() * 0.5", "v * v", "v.clone().mul(-1)")
_SAME = (
    "v.contiguous()", "v.clone()", "v.clone(memory_format=torch.contiguous_format)", "v * 0.5", "v + v.detach()",
    "v.reshape(v.shape)",
)  # fmt: skip
_IN_PLACE = ("{} = 0.0", "{} *= 3", "{} -= 0.5", "{}.mul_(2)", "{}.zero_()", "{}.add_(0.25)", "{}.copy_({} * 2 + 1)")


def random_views(seed: int) -> str:
    """The text of `def views(x, i)`, the same for the same seed."""
    return _Writer(random.Random(seed)).text()


def function_of(text: str, name: str = "views") -> Callable[..., Any]:
    """The function that `text` defines; tracebacks show its lines."""
    filename = f"<{name} {abs(hash(text))}>"
    linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
    scope: dict[str, Any] = {"torch": torch}
    exec(compile(text, filename, "exec"), scope)
    found: Callable[..., Any] = scope[name]
    return found


@dataclass(slots=True)
class _Writer:
    """Writes line after line; `dims` are the sizes of `v`, None where it is the number of rows."""

    draw: random.Random
    dims: list[int | None] = None  # type: ignore[assignment]
    repeats: bool = False  # whether numbers of v share memory, so that v may not be written to

    def text(self) -> str:
        self.dims = [None, WIDTH]
        lines = [f"v = {self.draw.choice(_ROWS)}"]
        for _ in range(self.draw.randint(1, 4)):
            lines.append(f"v = {self._arranged()}")
        lines.append(f"v = {self.draw.choice(_SAME)}")
        lines.append(f"v = {self.draw.choice(_NEW)}")
        self.repeats = False
        for _ in range(self.draw.randint(1, 3)):
            lines.append(self._write())
            if self.draw.random() < 0.4:
                lines.append(f"v = {self._arranged()}")
            if self.repeats or self.draw.random() < 0.2:
                lines.append(f"v = {self.draw.choice(('v.clone()', 'v * 2', 'v.contiguous() + 0.5'))}")
                self.repeats = False
        lines.append(f"return {self._given()}")
        return "def views(x, i):\n" + "".join(f"    {line}\n" for line in lines)

    def _arranged(self) -> str:
        choices = [self._turned, self._cut, self._grown, self._merged, self._doubled, self._split, self._flipped]
        while True:
            found = self.draw.choice(choices)()
            if found is not None:
                return found

    # -------------------------------------------------------- other places for the same numbers

    def _turned(self) -> str | None:
        order = list(range(len(self.dims)))
        self.draw.shuffle(order)
        self.dims = [self.dims[d] for d in order]
        return "v.t()" if order == [1, 0] and self.draw.random() < 0.5 else f"v.permute({', '.join(map(str, order))})"

    def _cut(self) -> str | None:
        d = self.draw.randrange(len(self.dims))
        size = self.dims[d]
        if size is None or size < 3:
            return None
        start = self.draw.randint(0, 1)
        self.dims[d] = size - 1
        return f"v[{_colons(d)}{start}:{start + size - 1}]"

    def _grown(self) -> str | None:
        if len(self.dims) > 3:
            return None
        d = self.draw.randrange(len(self.dims) + 1)
        self.dims.insert(d, 2)
        self.repeats = True
        return f"v.unsqueeze({d}).expand({', '.join('2' if e == d else '-1' for e in range(len(self.dims)))})"

    def _merged(self) -> str | None:
        places = [d for d in range(len(self.dims) - 1) if None not in self.dims[d : d + 2]]
        if not places:
            return None
        d = self.draw.choice(places)
        a, b = self.dims[d : d + 2]
        assert a is not None and b is not None
        self.dims[d : d + 2] = [a * b]
        return f"v.flatten({d}, {d + 1})"

    def _split(self) -> str | None:
        places = [d for d, n in enumerate(self.dims) if n in (4, 6, 8)]
        if not places or len(self.dims) > 3:
            return None
        d = self.draw.choice(places)
        size = self.dims[d]
        assert size is not None
        self.dims[d : d + 1] = [2, size // 2]
        return f"v.unflatten({d}, (2, {size // 2}))"

    def _doubled(self) -> str | None:
        d = self.draw.randrange(len(self.dims))
        size = self.dims[d]
        if size is None or size > 4:
            return None
        self.dims[d] = 2 * size
        self.repeats = False
        return self.draw.choice((f"v.repeat_interleave(2, dim={d})", f"torch.cat([v, v * 2], {d})"))

    def _flipped(self) -> str | None:
        self.repeats = False
        return f"v.flip({self.draw.randrange(len(self.dims))})"

    # -------------------------------------------------------- writes and results

    def _part(self) -> str:
        d = self.draw.randrange(len(self.dims))
        size = self.dims[d]
        parts = [f"v[{_colons(d)}0]", f"v[{_colons(d)}:1]", f"v[{_colons(d)}-1]", f"v[{_colons(d)}1:]"]
        if d == len(self.dims) - 1:
            parts.append("v[..., 0]")
        if len(self.dims) == 2:
            parts.append(f"v.t()[{_colons(1 - d)}0]")
        if size is not None and size > 1:
            parts.append(f"v.select({d}, 1)")
        return self.draw.choice(parts)

    def _write(self) -> str:
        if self.draw.random() < 0.15:
            return self.draw.choice(("v.masked_fill_(v > 0.5, 0.25)", "v[v < 0] = 0.0", "v.neg_()"))
        part, form = self._part(), self.draw.choice(_IN_PLACE)
        if "=" in form and part.endswith(")"):
            form = "{}.mul_(2)"
        return form.format(part, part)

    def _given(self) -> str:
        parts = ["v", "v", "v * 2", "v.contiguous()", f"v, {self._part()}", "v, x[1:]", "v.reshape(-1)", "v.clone(), v"]
        return self.draw.choice(parts)


def _colons(d: int) -> str:
    return ":, " * d


def example(rows: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """`x` and `i` for `rows` rows, of float64 and int64."""
    generator = torch.Generator().manual_seed(1000 * seed + rows)
    x = torch.randn(rows, WIDTH, dtype=torch.float64, generator=generator)
    i = torch.randint(rows, (rows,), generator=generator)
    i[0], i[1] = 0, rows - 1
    return x, i
