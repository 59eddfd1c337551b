"""An exported model's shared library, called from Python as other programs call it."""

from __future__ import annotations

import ctypes
import json
import platform
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from graphweave.core.errors import ExportError, IndexRangeError
from graphweave.exporting.dtypes import DTYPE_CODE, NUMBER_OF
from graphweave.ir.message.aten import DTYPE_OF, TORCH_DTYPE

_MAX_DIMS = 8
_OUT_OF_RANGE = 2


class _Given(ctypes.Structure):
    """`gw_tensor` of model.h."""

    _fields_ = (
        ("data", ctypes.c_void_p), ("dtype", ctypes.c_int32), ("ndim", ctypes.c_int32),
        ("sizes", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
    )  # fmt: skip


class _Output(ctypes.Structure):
    """`gw_output`."""

    _fields_ = (
        ("data", ctypes.c_void_p), ("nbytes", ctypes.c_int64), ("dtype", ctypes.c_int32), ("ndim", ctypes.c_int32),
        ("sizes", ctypes.c_int64 * _MAX_DIMS),
    )  # fmt: skip


class _Error(ctypes.Structure):
    """`gw_error`."""

    _fields_ = (
        ("status", ctypes.c_int32), ("argument", ctypes.c_int32), ("position", ctypes.c_int64),
        ("value", ctypes.c_int64), ("first", ctypes.c_int64), ("behind", ctypes.c_int64),
        ("message", ctypes.c_char * 488),
    )  # fmt: skip


class _Options(ctypes.Structure):
    """`gw_options`."""

    _fields_ = (("threads", ctypes.c_int32), ("parallel", ctypes.c_void_p))


class LoadedModel:
    """An exported model in this process, called by its C interface: `model(*tensors)` gives its outputs in order.

    Raises ExportError with the library's own message; IndexRangeError (an IndexError) for an index out of range.
    """

    def __init__(self, folder: str | Path, threads: int = 1) -> None:
        """`folder` is what `graphweave.export` has written."""
        folder = Path(folder)
        self._native = native = _opened(folder / "model.so")
        for name in ("gw_model_open_version", "gw_model_run", "gw_model_load", "gw_graph_new", "gw_graph_run"):
            getattr(native, name).restype = ctypes.c_int32
        native.gw_model_outputs.restype = ctypes.c_void_p
        for name in ("gw_model_close", "gw_graph_free", "gw_free"):
            getattr(native, name).argtypes, getattr(native, name).restype = (ctypes.c_void_p,), None
        self._options = _Options(threads, None)
        self._model = ctypes.c_void_p()
        error = _Error()
        weights = str(folder / "weights.safetensors").encode()
        native.gw_model_open_version(1, weights, ctypes.byref(self._model), ctypes.byref(error))
        self._check(error)
        count = ctypes.c_int32()
        native.gw_model_outputs(ctypes.byref(count))
        self._num_outputs = count.value

    def __del__(self) -> None:
        if getattr(self, "_model", None):
            self._native.gw_model_close(self._model)

    def load(self, weights: str | Path) -> None:
        """Take the weights of another safetensors file."""
        error = _Error()
        self._native.gw_model_load(self._model, str(weights).encode(), ctypes.byref(error))
        self._check(error)

    def __call__(self, *inputs: Tensor) -> list[Tensor]:
        return self._run(self._native.gw_model_run, (self._model,), inputs)

    def prepared(self, *inputs: Tensor) -> PreparedGraph:
        """The values that depend on the graph alone, made once."""
        graph, error = ctypes.c_void_p(), _Error()
        given, held = _given(inputs)
        self._native.gw_graph_new(
            self._model, given, ctypes.byref(self._options), ctypes.byref(graph), ctypes.byref(error)
        )
        self._check(error)
        del held
        return PreparedGraph(self, graph)

    def bound(
        self, inputs: Sequence[Tensor], outputs: Sequence[Tensor], graph: PreparedGraph | None = None
    ) -> Callable[[], None]:
        """A call on inputs and outputs that stay the same, in the caller's memory: what a program in C does again and
        again. The outputs are dense tensors of the right sizes."""
        given, held = _given(inputs)
        places, error = (_Output * max(len(outputs), 1))(), _Error()
        for place, tensor in zip(places, outputs, strict=False):
            place.data, place.nbytes = tensor.data_ptr(), tensor.nbytes
        function = self._native.gw_model_run if graph is None else self._native.gw_graph_run
        handles = (self._model,) if graph is None else (self._model, graph._graph)
        arguments = (*handles, given, places, ctypes.byref(self._options), ctypes.byref(error))

        def call(kept: object = (held, tuple(outputs), graph)) -> None:
            if function(*arguments):
                self._check(error)

        return call

    def _run(
        self, function: Callable[..., object], handles: tuple[object, ...], inputs: Sequence[Tensor]
    ) -> list[Tensor]:
        given, held = _given(inputs)
        outputs, error = (_Output * max(self._num_outputs, 1))(), _Error()
        function(*handles, given, outputs, ctypes.byref(self._options), ctypes.byref(error))
        self._check(error)
        del held
        return [self._taken(one) for one in outputs[: self._num_outputs]]

    def _taken(self, output: _Output) -> Tensor:
        """A copy of an output, whose memory goes back to the library."""
        dtype = TORCH_DTYPE[next(d for d in DTYPE_CODE if NUMBER_OF[d] == output.dtype)]
        content = bytearray(ctypes.string_at(output.data, output.nbytes))
        self._native.gw_free(output.data)
        sizes = list(output.sizes[: output.ndim])
        if not content:
            return torch.empty(sizes, dtype=dtype)
        return torch.frombuffer(content, dtype=dtype).reshape(sizes)

    def _check(self, error: _Error) -> None:
        if error.status == _OUT_OF_RANGE:
            raise IndexRangeError(error.message.decode())
        if error.status:
            raise ExportError(error.message.decode())


class PreparedGraph:
    """`graph(*tensors)` runs the model on the graph that was prepared, whose indices are not looked at again."""

    def __init__(self, model: LoadedModel, graph: ctypes.c_void_p) -> None:
        self._model, self._graph = model, graph

    def __del__(self) -> None:
        self._model._native.gw_graph_free(self._graph)

    def __call__(self, *inputs: Tensor) -> list[Tensor]:
        return self._model._run(self._model._native.gw_graph_run, (self._model._model, self._graph), inputs)


def _opened(library: Path) -> ctypes.CDLL:
    """A library of this process. ExportError if it is for another machine."""
    try:
        return ctypes.CDLL(str(library))
    except OSError as error:
        manifest = library.with_name("manifest.json")
        if not manifest.exists():
            raise ExportError(f"{library} cannot be opened: {error}. Call graphweave.export again.") from error
        target = json.loads(manifest.read_text(encoding="utf-8"))["machine"]["target"]
        raise ExportError(
            f"{library} cannot be opened on this machine, {platform.machine()}, since it was exported for {target} "
            f"({error}). Call graphweave.export again, without a target."
        ) from error


def _given(inputs: Sequence[Tensor]) -> tuple[object, list[object]]:
    """Inputs as the C interface takes them, and what must be kept meanwhile."""
    held: list[Any] = [inputs]
    given = (_Given * max(len(inputs), 1))()
    for one, tensor in zip(given, inputs, strict=False):
        numbers = ctypes.c_int64 * max(tensor.dim(), 1)
        sizes, strides = numbers(*tensor.shape), numbers(*tensor.stride())
        held += [sizes, strides]
        one.data, one.dtype, one.ndim = tensor.data_ptr(), NUMBER_OF[DTYPE_OF[tensor.dtype]], tensor.dim()
        one.sizes, one.strides = sizes, strides
    return given, held
